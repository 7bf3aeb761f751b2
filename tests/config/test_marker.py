"""The phase marker on its own; test_usage_errors.py checks the texts of its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_clustersmoke.config.marker import Needs, PhaseMarker, read_marker
from pytest_clustersmoke.config.phase import parse_setting


def read(*args: Any, **kwargs: Any) -> tuple[PhaseMarker | None, list[str]]:
    kwargs.setdefault("script", Path(__file__).name)
    marked, problems = read_marker(args, kwargs, Path(__file__), "here.py:1")
    return marked, list(map(str, problems))


def test_marker_has_defaults() -> None:
    """One node, one GPU, no arguments, one hour; the script is next to the test file."""
    marked, problems = read("small")
    assert problems == []
    assert marked == PhaseMarker("small", Path(__file__), 1, 1, {}, 3600.0, "here.py:1")


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "../a", "a%j", "a\n", "a.b", "x" * 65, 7])
def test_invalid_phase_name_is_refused(name: object) -> None:
    """A name must work as a directory, a job's name and a key of cluster.yaml."""
    marked, problems = read(name)
    assert marked is None and "has no valid name" in problems[0]


@settings(max_examples=25)  # the last ones are like the first, and each takes its time to draw
@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True))
def test_every_valid_name_works_with_cluster_set(name: str) -> None:
    """--cluster-set accepts every name that the marker accepts."""
    assert read(name)[1] == []
    assert parse_setting(f"{name}.nodes=2") == (name, "nodes", "", 2)


def test_small_arguments_are_checked_like_args() -> None:
    """`small` takes options with plain values, as `args` does."""
    marked, _ = read("one", args={"steps": 100}, small={"steps": 3})
    assert marked is not None and (marked.args, marked.small) == ({"steps": 100}, {"steps": 3})
    _, problems = read("one", small={"steps": {1: 2}})
    assert problems[0].startswith(
        "here.py:1: small['steps']={1: 2} of phase 'one' cannot be passed to the program; expected"
        " a name with text"
    )


def test_launcher_and_order_are_read() -> None:
    """Both are a name; a launcher is one of those that exist, and a near one is offered."""
    marked, problems = read("two", launcher="srun", after="one")
    assert problems == [] and marked is not None
    assert (marked.launcher, marked.after) == ("srun", "one")
    _, problems = read("two", launcher="torchrunn", after=["one"])
    assert problems[0].startswith(
        "here.py:1: launcher='torchrunn' of phase 'two' is not valid; expected one of torchrun, "
    )
    assert problems[0].endswith("did you mean `torchrun`?")
    assert problems[1] == (
        "here.py:1: after=['one'] of phase 'two' is not valid; expected a phase's name"
    )


def test_needs_are_read() -> None:
    """`needs` has the facts that `clustersmoke init` fits a phase by."""
    marked, problems = read("one", needs={"bf16": True, "writes_gib": 14})
    assert problems == [] and marked is not None
    assert marked.needs == Needs(bf16=True, writes_gib=14)


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        ([1], "here.py:1: needs of phase 'one' is not a mapping; expected a dict"),
        ({"bf61": True}, "here.py:1: unknown key 'bf61' in needs of phase 'one'; expected one of"),
        ({"bf16": 1}, "here.py:1: needs['bf16']=1 of phase 'one' is not valid; expected True or"),
        ({"downloads": 7}, "needs['downloads']=7 of phase 'one' is not valid; expected text"),
        (
            {"min_nodes": 1.5},
            "needs['min_nodes']=1.5 of phase 'one' is not valid; expected a whole",
        ),
        ({"writes_gib": float("nan")}, "needs['writes_gib']=nan of phase 'one' is not valid; exp"),
    ],
)
def test_invalid_needs_are_refused(needs: object, problem: str) -> None:
    """An unknown key has a near match; a value must have the type of its key."""
    marked, problems = read("one", needs=needs)
    assert marked is None and len(problems) == 1 and problem in problems[0]


def test_all_mistakes_of_a_marker_are_reported() -> None:
    """Name, script, counts, arguments and unknown keys each give a problem."""
    _, problems = read(script=None, nodes=0, gpus_per_node=1.5, timeout_s="x", args=[1], gpu=2)
    assert len(problems) == 7
