"""Logs of any size and kind are read in chunks, and nothing is lost at their borders."""

from __future__ import annotations

import contextlib
import io
import re
import tracemalloc
from random import Random
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_clustersmoke.diagnose import log_lines, signature_search, unknown_errors
from pytest_clustersmoke.diagnose.signature_file import shipped_signatures
from pytest_clustersmoke.diagnose.signature_findings import order_findings
from pytest_clustersmoke.diagnose.signature_search import SignatureSearch
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.nccl.log_reader import Unreadable
from tests.diagnose.logs import KILLED, REMOTE, TRACEBACK, WATCHDOG, diagnosed, ids

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
SETTINGS = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
SAMPLES = [sample.text for signature in shipped_signatures() for sample in signature.samples]


@pytest.mark.parametrize("text", [OOM, KILLED, TRACEBACK.format("[rank3]: ")])
@pytest.mark.parametrize("back", [0, 1, 7, 40, 120, 400])
def test_nothing_is_lost_at_chunk_borders(text: str, back: int) -> None:
    """Wherever a text is, its finding, line, rank and host are the same."""
    (expected, *_) = diagnosed(text)
    for border in (
        signature_search.CHUNK_BYTES,
        signature_search.CHUNK_BYTES - signature_search.AHEAD_BYTES,
    ):
        lines = "x" * 98 + "\n"
        before = lines * ((border - back) // len(lines))
        before += "y" * (border - back - len(before) - 1) + "\n"
        (finding, *_) = diagnosed(before + text + lines * 2000)
        assert (finding.id, finding.ranks, finding.hosts) == (
            expected.id,
            expected.ranks,
            expected.hosts,
        )
        shift = before.count("\n")
        assert [line.line - shift for line in finding.evidence] == [
            line.line for line in expected.evidence
        ]
        assert [line.text for line in finding.evidence] == [
            finding.text for finding in expected.evidence
        ]


def test_endless_line() -> None:
    """It is examined in pieces; a word in it is found once, with its surroundings."""
    filler = b"a" * 3 * signature_search.CHUNK_BYTES
    (finding,) = diagnosed(filler + b" RuntimeError: CUDA out of memory " + filler)
    assert finding.id == "cuda_oom" and finding.detail["lines"] == 1
    assert "CUDA out of memory" in finding.evidence[0].text
    assert len(finding.evidence[0].text) <= log_lines.MAX_TEXT


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log() -> None:
    """Tens of megabytes of findings and tracebacks need only a few."""

    class Endless(io.RawIOBase):
        left = 100

        def read(self, size: int | None = -1, /) -> bytes:
            self.left -= 1
            return (OOM + KILLED + TRACEBACK.format("")).encode() * 400 if self.left else b""

    search = SignatureSearch(shipped_signatures())
    tracemalloc.start()
    try:
        search.stream(cast(BinaryIO, Endless()), "0.log")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ids(order_findings(search))[0] == "rank_killed"
    assert peak < 16 * 2**20


def test_progress_bar_is_not_evidence() -> None:
    """Carriage returns end its lines; only the error after it is reported."""
    bar = "".join(f"Epoch 0: {n}%\r" for n in range(500))
    (finding,) = diagnosed(bar + OOM)
    assert finding.evidence[0].text == OOM.strip() and finding.evidence[0].line == 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [(b"\x1f\x8b\x08", "compressed"), (b"\xff\xfeh\0i\0", "UTF-16"), (b"a\0b" * 9, "binary")],
)
def test_file_that_is_not_text_is_refused(raw: bytes, words: str) -> None:
    """Otherwise it would look like a log without errors."""
    with pytest.raises(Unreadable, match=words):
        diagnosed(raw)


@pytest.mark.parametrize("garbage", [b"\0\x01\xfe" * 4000, b"\n\0\n" * 4000])
def test_log_with_garbage_is_searched(garbage: bytes) -> None:
    """A cause counts wherever it is; a caller that may skip such files need not search them."""
    for raw in (OOM.encode() + garbage, garbage + OOM.encode(), garbage + b"\n" + KILLED.encode()):
        assert ids(diagnosed(raw))[0] in ("cuda_oom", "rank_killed")
        search = SignatureSearch(shipped_signatures())
        with pytest.raises(Unreadable, match="binary"):
            search.stream(io.BytesIO(raw), "0.log", insist=False)
        assert order_findings(search) == []


def test_garbage_is_judged_for_each_log() -> None:
    """The contents of one log do not make another one readable."""
    with pytest.raises(Unreadable, match=r"1\.log is binary"):
        diagnosed(OOM, b"a\0b" * 9)


def test_unfinished_tracebacks_are_skipped() -> None:
    """After enough attempts only the word is still found, and what follows is not lost."""

    class Counted(SignatureSearch):
        looked = 0

        def _examine_line(self, *args: Any) -> None:
            self.looked += 1
            super()._examine_line(*args)

    search = Counted(shipped_signatures())
    torn = "Traceback (most recent call last):\n" * 50_000
    search.stream(io.BytesIO((torn + OOM + torn).encode()), "0.log")
    assert ids(order_findings(search)) == ["cuda_oom"]
    assert search.looked < unknown_errors.MAX_LOOKS + 9


def check(findings: list[Finding]) -> None:
    for finding in findings:
        assert finding.cause and finding.fix and finding.evidence
        assert all(
            len(line.text) <= log_lines.MAX_TEXT and line.line > 0 for line in finding.evidence
        )
    primary = [finding.primary for finding in findings]
    assert primary == sorted(primary, reverse=True)


@pytest.mark.slow
@SETTINGS
@given(st.lists(st.sampled_from(SAMPLES), max_size=6), st.integers(0, 2**32 - 1))
def test_damaged_logs_are_read_to_the_end(samples: list[str], seed: int) -> None:
    """Texts that were cut, torn, joined and repeated raise nothing, and keep their order."""
    random = Random(seed)
    raw = bytearray("\n".join([*samples, KILLED, TRACEBACK, REMOTE]).encode())
    for _ in range(random.randrange(30)):
        at = random.randrange(len(raw))
        match random.randrange(4):
            case 0:
                raw[at] = random.randrange(1, 256)
            case 1:
                del raw[at : at + random.randrange(40)]
            case 2:
                raw[at:at] = raw[at : at + random.randrange(200)]
            case _:
                raw[at:at] = random.choice([b"\n", b"\r", b"\x1b[31m", b"\xe2\x82", b'"', b"\0"])
        if not raw:
            return
    try:
        check(diagnosed(bytes(raw)))
    except Unreadable as error:
        assert re.search("binary|UTF-16|compressed", str(error))


@SETTINGS
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """Nothing else is raised, and every finding has evidence."""
    with contextlib.suppress(Unreadable):
        check(diagnosed(b"x\n" + raw))


def test_stream_with_short_reads() -> None:
    """A pipe returns what it has."""

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 1, 100))

    text = "x\n" * 50_000 + OOM + WATCHDOG.format(1, "10")
    search = SignatureSearch(shipped_signatures())
    search.stream(Slow(text.encode()), "0.log")
    assert ids(order_findings(search)) == ids(diagnosed(text))
    assert order_findings(search)[0].evidence == diagnosed(text)[0].evidence


def test_general_cause_over_several_lines_is_tried_a_bounded_number_of_times() -> None:
    """So a log that repeats it on every line takes a bounded time."""
    line = "OSError: [Errno 98] Address already in use\n"
    search = SignatureSearch(shipped_signatures())
    search.stream(io.BytesIO((line * 20_000).encode()), "0.log")
    assert max(search._tried.values()) < signature_search.MAX_COUNTED + 9
    assert ids(order_findings(search)) == ["port_in_use"]
