"""However a log is damaged, reading it ends and invents neither edges nor their communicators."""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_clustersmoke.evidence.nccl import log_reader
from pytest_clustersmoke.evidence.nccl.log_reader import Unreadable
from pytest_clustersmoke.evidence.nccl.nccl_log import Log
from tests.evidence.nccl.samples import DATA, SAMPLES
from tests.evidence.nccl.simulated import SimulatedJob
from tests.evidence.nccl.wording import edges, read, text_of


def bounded(examples: int) -> settings:
    """This many examples, the same in every run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


SEEDS = st.integers(0, 2**32 - 1)
LOGS = {name: (DATA / f"{name}.log").read_bytes() for name in SAMPLES}


def job_text(seed: int) -> bytes:
    random = Random(seed)
    return text_of(SimulatedJob(random).merged(random))


# -- Random damage ---------------------------------------------------------------------------------


class Mutation(NamedTuple):
    """One change to a text; places are in units of 2**-16 of its length."""

    kind: str
    place: int
    other: int
    byte: int


MUTATIONS = st.lists(
    st.builds(
        Mutation,
        st.sampled_from(
            ["flip", "delete", "insert", "cut", "glue", "repeat", "swap", "word", "newline"]
        ),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**16 - 1),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=12,
)
WORDS = [
    b" via ", b"Channel ", b"Ring ", b"NCCL WARN ", b" nranks ", b"NCCL INFO ", b"NET/", b"comm 0x",
    b" -> ", b"[send]", b"\x1b[36m", b"\0", b"\r", b"\\u003e", b"\xff", b": Using [", b"9" * 30,
]  # fmt: skip


def mutated(text: bytes, mutations: list[Mutation]) -> bytes:
    for kind, place, other, byte in mutations:
        at, to = (len(text) * position >> 16 for position in (place, other))
        line = text.find(b"\n", at) + 1 or len(text)
        if kind == "flip" and text:
            text = text[:at] + bytes([byte]) + text[at + 1 :]
        elif kind == "delete":
            text = text[:at] + text[at + byte :]
        elif kind == "insert":
            text = text[:at] + bytes([byte]) + text[at:]
        elif kind == "cut":
            text = text[:at] if byte < 32 else text
        elif kind == "glue":
            text = text[: line - 1] + text[line:]
        elif kind == "repeat":
            text = text[:line] + text[at : at + 4 * byte] + text[line:]
        elif kind == "swap":
            low, high = sorted((at, to))
            text = text[high:] + text[low:high] + text[:low]
        elif kind == "word":
            text = text[:at] + WORDS[byte % len(WORDS)] + text[at:]
        else:
            text = text[:at] + b"\n" * (byte % 4) + text[at:]
    return text


@bounded(400)
@given(st.one_of(st.sampled_from(SAMPLES), SEEDS), MUTATIONS, st.sampled_from([7, 100, 2**17]))
def test_a_mutated_log_is_read_or_refused(
    origin: str | int, mutations: list[Mutation], chunk: int
) -> None:
    """Nothing but Unreadable is raised, and the log is consistent."""
    text = mutated(LOGS[origin] if isinstance(origin, str) else job_text(origin), mutations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "CHUNK_BYTES", chunk)
        try:
            log = read(text)
        except Unreadable:
            return
    check(log, text)


@bounded(200)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=6)), max_size=60))
def test_words_in_any_order_are_read_or_refused(words: list[bytes]) -> None:
    """NCCL's words in random order."""
    text = b"NCCL" + b"".join(words)
    check(read(text), text)


def check(log: Log, text: bytes) -> None:
    lines = text.count(b"\n") + 1
    for edge in log.edges:
        assert 1 <= edge.where.line <= lines
        assert edge.kind
        assert all(index < len(log.communicators) for index in edge.communicators)
    for comm in log.communicators:
        assert all(comm.ranks is None or rank < comm.ranks for rank in comm.members)
    assert all(1 <= place.line <= lines for place in log.torn)


# -- Whole writes ----------------------------------------------------------------------------------

CUTS = st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1)), max_size=8)


def witnesses(text: bytes) -> bytes:
    """A complete line with each transport of the log, between ranks that the log does not have.

    Only a complete line with a longer wording shows that a line was cut. If a transport occurred in
    a single line, and that line was cut where a shorter transport of other lines ends, the log
    would look like one with the shorter transport.
    """
    lines = []
    for number, wording in enumerate(sorted({e.wording for e in read(text).edges})):
        role = " [send]" if wording.startswith("NET") else ""
        lines.append(
            f"w:1:2 [0] NCCL INFO Channel 00/0 : 77{number}[0] -> 88{number}[0]{role} via {wording}"
        )
    return text_of(lines)


def broken(text: bytes, cuts: list[tuple[int, int]], inside: list[tuple[int, int]]) -> bytes:
    """Writes that ended early and lost their newline (a full disk, a killed process), and writes
    in the middle of others.

    Each write is damaged at most once. If a piece of one met the rest of another (`2[3` and
    `4000] -> 2[35000] via …`), they would read as a line that neither was. A piece of a label
    (`| 2024-12-`) would look like a remark behind a complete line, so the rest of a write keeps
    its `NCCL INFO`.
    """
    lines = [(line, False) for line in text.splitlines(keepends=True)]
    for place, other in inside:
        inner, outer = len(lines) * other >> 16, len(lines) * place >> 16
        if inner != outer and not (lines[inner][1] or lines[outer][1]):
            line, half = lines[outer][0], len(lines[outer][0]) // 2
            lines[outer] = line[:half] + lines[inner][0] + line[half:], True
            del lines[inner]
    for place, length in cuts:
        index = len(lines) * place >> 16
        line, composed = lines[index]
        if not composed:
            kept = line.find(b"NCCL INFO ") + len(b"NCCL INFO ")
            lines[index] = line[: max(kept, len(line) * length >> 16)], True
    return b"".join(line for line, _ in lines)


@pytest.mark.slow
@bounded(250)
@given(st.one_of(st.sampled_from(SAMPLES), SEEDS), CUTS, CUTS, st.integers(0, 200))
def test_damaged_writes_do_not_invent_edges(
    origin: str | int, cuts: list[tuple[int, int]], inside: list[tuple[int, int]], front: int
) -> None:
    """With lines that lost their ends, a file that lost its beginning, and lines inside lines,
    every reported edge is one of the undamaged log, and complete lines are read."""
    text = LOGS[origin] if isinstance(origin, str) else job_text(origin)
    sure = witnesses(text)
    reported = edges(read(sure + broken(text, cuts, inside)[front:]))
    assert reported <= edges(read(sure + text))
    assert edges(read(sure)) <= reported


# -- Order -----------------------------------------------------------------------------------------


def facts(log: Log) -> set[object]:
    """The content of a log, by names that do not depend on the order of its lines."""
    who = {
        comm.index: frozenset((rank, member.process) for rank, member in comm.members.items())
        for comm in log.communicators
    }
    content: set[object] = {
        (e.source, e.destination, e.wording, e.channels, e.role, e.logger,
         frozenset(who[index] for index in e.communicators))
        for e in log.edges
    }  # fmt: skip
    return content | {(comm.id, comm.ranks, who[comm.index]) for comm in log.communicators}


@bounded(150)
@given(SEEDS, SEEDS)
def test_order_between_processes_does_not_matter(seed: int, shuffle: int) -> None:
    """Each process's own lines are in order, those of different processes in any order."""
    job = SimulatedJob(Random(seed))
    first, second = (text_of(job.merged(Random(number))) for number in (seed, shuffle))
    assert facts(read(first)) == facts(read(second))


# -- Attribution -----------------------------------------------------------------------------------


@bounded(250)
@given(SEEDS, st.booleans())
def test_true_communicator_is_listed(seed: int, one_process: bool) -> None:
    """For every edge of a complete log. If a process's inits were lost (torn lines), an edge may be
    attributed to another communicator in which the process has the same rank, since NCCL's line
    does not distinguish them."""
    random = Random(seed)
    job = SimulatedJob(random, one_process)
    log = read(text_of(job.merged(random)))
    for edge in log.edges:
        named = [log.communicators[index] for index in edge.communicators]
        for true in edge.channels:
            assert any(job.may_be(comm, true) for comm in named), (edge, job.groups[true])


@bounded(150)
@given(SEEDS, st.integers(0, 3))
def test_log_of_one_node_lists_no_wrong_communicator(seed: int, node: int) -> None:
    """Without the logs of the other nodes an edge's communicators are correct, or none is listed.
    Jobs without a communicator of all ranks are excluded, as are groups whose ranks are not in node
    order: halves of two such communicators on this node may look like a single one."""
    random = Random(seed)
    job = SimulatedJob(random, in_order=True)
    if len(job.groups[0]) != len(job.gpus):
        return
    host = job.gpus[job.per_node * node % len(job.gpus)].host
    lines = [line for line in job.merged(random) if re.search(rf"{host}:", line)]
    log = read(text_of(lines))
    for edge in log.edges:
        named = [log.communicators[index] for index in edge.communicators]
        for true in edge.channels:
            assert not named or any(job.may_be(comm, true) for comm in named), edge
