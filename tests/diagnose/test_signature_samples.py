"""Every signature matches its own samples, and is not a cause in any other signature's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_clustersmoke.diagnose.signature_file import (
    Pattern,
    Sample,
    Signature,
    shipped_signatures,
)
from tests.diagnose.alternatives import narrowed
from tests.diagnose.logs import diagnosed

EACH = [
    pytest.param(signature, sample, id=f"{signature.id}-{index}")
    for signature in shipped_signatures()
    for index, sample in enumerate(signature.samples)
]


@pytest.mark.parametrize(("signature", "sample"), EACH)
@pytest.mark.parametrize("around", ["{}", "noise\n{}\nnoise\n", "0: \x1b[31m{}\x1b[0m\r\n"])
def test_sample_is_found_only_by_its_own_signature(
    signature: Signature, sample: Sample, around: str
) -> None:
    """Alone, between other lines, and with a label, colour codes and Windows line ends."""
    findings = diagnosed(around.format(sample.text))
    if signature.harmless:
        assert not findings
        return
    assert signature.id in [finding.id for finding in findings]
    assert findings[0].id == signature.id and findings[0].primary == signature.primary
    assert [
        finding.id for finding in findings if finding.primary and finding.id != signature.id
    ] == []
    lines = [line.strip() for line in sample.text.splitlines() if line.strip()]
    evidence = next(finding for finding in findings if finding.id == signature.id).evidence[0]
    assert any(evidence.text[:100] in line or line[:100] in evidence.text for line in lines)


def shows(signature: Signature, pattern: Pattern, sample: Sample, regex: str | None) -> bool:
    """Whether a sample contains the pattern, with `regex` as its regex."""
    texts = [sample.text] if signature.lines > 1 else sample.text.splitlines()
    texts = [text for text in texts if pattern.word in text]
    if regex is None:
        return bool(texts)
    return any(re.search(regex, text, re.MULTILINE) for text in texts)


@pytest.mark.parametrize("signature", shipped_signatures(), ids=lambda signature: signature.id)
def test_every_wording_has_a_sample(signature: Signature) -> None:
    """Each pattern, and each wording that its regex allows, has a real source."""
    wordings = [
        (pattern, regex)
        for pattern in signature.patterns
        for regex in ([None] if pattern.regex is None else narrowed(pattern.regex.pattern))
    ]
    assert wordings
    unseen = [
        regex or pattern.word
        for pattern, regex in wordings
        if not any(shows(signature, pattern, sample, regex) for sample in signature.samples)
    ]
    assert unseen == []


@pytest.mark.parametrize(
    ("regex", "each"),
    [
        ("no choice", ["no choice"]),
        ("one|two words", ["two words"]),
        ("(?:a b|c d) e", ["(?:a b) e", "(?:c d) e"]),
        ("x(?: (?P<why>a b|c d))?", ["x(?: (?P<why>a b))", "x(?: (?P<why>c d))"]),
        (r"\|[|(]\((?:a|b)(?! c d| e f)", [r"\|[|(]\((?:a|b)(?! c d| e f)"]),
    ],
)
def test_regex_is_narrowed_to_each_of_its_wordings(regex: str, each: list[str]) -> None:
    """One of several words in its group alone, which must match then; lists of words are left."""
    assert list(narrowed(regex)) == each


@pytest.mark.parametrize(
    "signature",
    [signature for signature in shipped_signatures() if not signature.harmless],
    ids=lambda s: s.id,
)
def test_signature_has_cause_and_next_step(signature: Signature) -> None:
    """One line each, without a full stop, and a source for every text."""
    for words in (signature.cause, signature.fix, signature.source):
        assert len(words) > 10 and "\n" not in words
    assert all(sample.source for sample in signature.samples)
    assert not signature.cause.endswith(".") and not signature.fix.endswith(".")


# What the documents call safe to ignore (Gilbreth HPC Training Guide, 7.10, 8.10, 9.1), and what
# healthy runs print.
HARMLESS = (Path(__file__).parent / "harmless.log").read_text().splitlines()


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_line_is_not_a_finding(line: str) -> None:
    """Warnings that every healthy run prints are ignored."""
    assert diagnosed(line + "\n") == []


def test_all_harmless_lines_together_are_not_a_finding() -> None:
    """Their order and their neighbours do not matter."""
    assert diagnosed("\n".join(HARMLESS)) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0;", "asked for 2.26 GiB"),
        ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus", "Xid 79"),
        ("Connection closed by remote peer node2<42830>", "peer node2<42830>"),
        ("NET/IB : Got completion with error 12, opcode 0", "status 12"),
        ("bind to [::]:29500 (errno: 98 - Address already in use).", "the master port is in use"),
    ],
)
def test_names_in_the_text_are_in_the_cause(text: str, cause: str) -> None:
    """Sizes, peers and numbers of the text appear in the cause."""
    assert cause in diagnosed(text)[0].cause
