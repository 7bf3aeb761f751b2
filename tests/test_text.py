"""Text helpers: sanitised text, counts and lists."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pytest_clustersmoke.text import (
    Problem,
    UsageProblems,
    abridge_values,
    clip,
    format_bytes,
    format_here,
    format_seconds,
    near,
    outcome_words,
    plural,
    ranges,
    sanitize_line,
    sanitize_lines,
    shorten,
    shorten_lines,
)


def test_control_characters_are_replaced() -> None:
    """A line stays one line; several lines keep their line breaks and tabs."""
    assert sanitize_line("a\x1b[31mb\nc\td") == "a\ufffd[31mb c d"
    assert sanitize_lines("a\x1b\nb\tc") == "a\ufffd\nb\tc"


@pytest.mark.parametrize(
    ("text", "clipped"),
    [
        ("node5 is down", "node5 is down"),
        ("node4: fan; node5: d", "node4: fan..."),
        ("node4 fan node5", "node4 fan..."),
        ("a /scratch/runs/1", "a /scratch..."),
    ],
)
def test_long_text_is_cut_at_a_word(text: str, clipped: str) -> None:
    """Or inside it, where that is most of the text."""
    assert clip(text, 13) == clipped


@pytest.mark.parametrize(
    ("words", "most", "separator", "text"),
    [
        ([], 2, ", ", ""),
        (["a", "b"], 2, ", ", "a, b"),
        (["a", "b", "c", "d"], 2, ", ", "a, b and 2 more"),
        (["a", "b", "c"], 2, "; ", "a; b; and 1 more"),
    ],
)
def test_long_list_is_shortened(words: list[str], most: int, separator: str, text: str) -> None:
    """The first words stay; the rest is counted."""
    assert shorten(words, most, separator) == text


@pytest.mark.parametrize(
    ("most", "lines"),
    [
        (3, ["a", "b", "c"]),
        (None, ["a", "b", "c"]),
        (1, ["a", "... and 2 more (--all)"]),
        (0, ["... and 3 more (--all)"]),
    ],
)
def test_many_lines_are_shortened(most: int | None, lines: list[str]) -> None:
    """The first lines stay; the last says how many more there are, and where."""
    assert shorten_lines(["a", "b", "c"], most, " (--all)") == lines


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "loss is tensor([[ 0.1, -2e-05, nan],\n [1., inf, 3.],\n ..., [7, 8, 9]],\n "
            "device='cuda:3'): stop at step 12",
            "loss is tensor([[ 0.1, -2e-05, ...]],\n device='cuda:3'): stop at step 12",
        ),
        ("array([True, " + "False, " * 99 + "True]) differs", "array([True, False, ...]) differs"),
        (f"{[*range(10_000)]} and {[1.0] * 99}", "[0, 1, ...] and [1.0, 1.0, ...]"),
        ("the size of tensor a [2, 3, 4, 5, 6, 7, 8] must", ""),  # a shape
        ("ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 11", ""),
        ("[" * 5000 + "1," * 5000, ""),
        ("[node1, node2, node3, node4, node5, node6, node7, node8, node9]", ""),
    ],
)
def test_values_of_a_tensor_are_cut(text: str, short: str) -> None:
    """Words, shapes and names stay, and so does what follows."""
    if text.startswith("[["):
        assert abridge_values(text) == "[" * 5000 + "1,1, ...,"
    else:
        assert abridge_values(text) == (short or text)


def test_counts_and_ranges_are_formatted() -> None:
    """Plurals, thousands, consecutive numbers and near matches."""
    assert (plural(1, "pair"), plural(1000, "pair")) == ("1 pair", "1,000 pairs")
    assert plural(2, "entry", "entries") == "2 entries"
    assert ranges([0, 1, 2, 5]) == "0-2, 5"
    assert (near("nods", ["nodes"]), near("x", ["nodes"])) == ("did you mean `nodes`?", "")


def test_problem_says_what_where_expected_and_todo() -> None:
    """The place first, then what is wrong, what was expected, what to do."""
    assert str(Problem("x is y", "f:3", "z", "do w")) == "f:3: x is y; expected z; do w"
    assert str(Problem("x is y")) == "x is y"
    assert str(UsageProblems([Problem("a"), Problem("b")])) == "a\nb"


@pytest.mark.parametrize(("word", "hint"), [("node", "did you mean `nodes`?"), ("quite else", "")])
def test_near_hints_at_a_close_word_only(word: str, hint: str) -> None:
    """A distant word gives no hint."""
    assert near(word, ["nodes", "args"]) == hint


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**26, "64 MiB"),
        (2**30, "1 GiB"),
        (96.5 * 2**30, "96.5 GiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit(count: float, text: str) -> None:
    """In the largest binary unit that does not exceed the number."""
    assert format_bytes(count) == text


def test_unknown_seconds_are_a_dash() -> None:
    """Known seconds have one decimal."""
    assert (format_seconds(None), format_seconds(0.25), format_seconds(12)) == ("-", "0.2", "12.0")


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process in a zone that is ahead of UTC."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
def test_time_of_this_machine_has_its_zone() -> None:
    """Slurm's estimates have none, and people read them elsewhere; in winter and in summer."""
    assert format_here(1_767_322_800) == "2026-01-02 04:00 UTC+01:00 (03:00 UTC)"
    assert format_here(1_782_961_200) == "2026-07-02 05:00 UTC+02:00 (03:00 UTC)"
    assert format_here(1e300) == ""


def test_outcomes_in_sentences_are_words() -> None:
    assert [outcome_words(name) for name in ("never_ran", "lost")] == ["never ran", "lost"]
