"""A signature file is checked as a whole, and every mistake is reported with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.diagnose.signature_file import load_signatures
from pytest_clustersmoke.text import UsageProblems

GOOD = """\
signatures:
- id: one
  primary: true
  cause: it broke
  fix: mend it
  source: a book
  patterns:
  - some words
  - word: other words
    regex: 'other words (?P<why>\\w+)'
  names: {why: because of}
  samples:
  - {text: some words, source: the book}
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "signatures.yaml"
    path.write_text(text)
    with pytest.raises(UsageProblems) as raised:
        load_signatures(path)
    return [str(problem).removeprefix(f"{tmp_path}/") for problem in raised.value.problems]


def test_valid_file(tmp_path: Path) -> None:
    """Omitted keys have their defaults, and a pattern may be a plain text."""
    path = tmp_path / "signatures.yaml"
    path.write_text(GOOD)
    (signature,) = load_signatures(path)
    assert (signature.id, signature.lines, signature.follows, signature.harmless) == (
        "one",
        1,
        (),
        False,
    )
    assert [pattern.word for pattern in signature.patterns] == ["some words", "other words"]
    assert signature.patterns[0].regex is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  fix: mend it\n", "", "signatures.yaml:2: the signature has no `fix`; expected what to"),
        ("fix: mend it", "fixed: mend it", "unknown key `fixed`"),
        ("fix: mend it", "fixed: mend it", "did you mean `fix`?"),
        ("primary: true", "primary: maybe", "signatures.yaml:3: `primary` is 'maybe'; expected"),
        ("id: one", "id: One of us", "`One of us` is not an id"),
        ("- some words", "- some", "signatures.yaml:8: `some` cannot be a `word`"),
        ("(?P<why>\\w+)", "(?P<why>\\w+", "signatures.yaml:9: the regex is malformed"),
        ("(?P<why>\\w+)", "(?P<why>.*)", "`.*` in the regex has no bound"),
        ("names: {why: because of}", "names: {}", "the group `why` has no name"),
        ("{why: because of}", "{why: b, how: c}", "no regex has a group `how`"),
        ("source: a book", "source: a book\n  lines: 99", "`lines` is 99; expected how many lines"),
        ("source: a book", "source: a book\n  follows: [two]", "follows `two`, which is not"),
        ("primary: true", "primary: false\n  general: true", "general, but not primary"),
        ("primary: true", "primary: false\n  late: true", "late, but not an exact cause"),
        ("  - {text: some words, source: the book}", "  - some words", "a sample has the wrong"),
        ("signatures:\n", "signature:\n", "holds no signatures"),
        ("signatures:\n", "other: 1\nsignatures:\n", "unknown key `other`"),
        ("  patterns:\n  - some words\n", "  patterns:\n  - [x]\n", "a pattern has the wrong form"),
        (
            "(?P<why>\\w+)'\n",
            "(?P<why>\\w+)'\n    after: one\n",
            "refers to `one`; expected the id",
        ),
    ],
)
def test_mistake_is_reported_with_its_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    """What, where, and what was expected."""
    assert old in GOOD
    assert any(words in problem for problem in problems(tmp_path, GOOD.replace(old, new))), words


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """Of both signatures, and an id that appears twice."""
    twice = GOOD + GOOD.removeprefix("signatures:\n")
    assert any("`one` appears twice" in line for line in problems(tmp_path, twice))
    broken = twice.replace("primary: true", "primary: 7").replace("cause: it broke", "cause: ''")
    assert len(problems(tmp_path, broken)) == 4
