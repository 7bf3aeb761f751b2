"""Sweeps: which points they have, how these are named, and which sweeps are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.marker import PhaseMarker, read_marker
from pytest_clustersmoke.config.phase import resolve_all
from pytest_clustersmoke.config.sweep import find_mistake, label, list_points
from tests.support.evidence import make_profile


def read(*args: Any, **kwargs: Any) -> tuple[PhaseMarker | None, list[str]]:
    marked, problems = read_marker(
        args, {"script": Path(__file__).name, **kwargs}, Path(__file__), "here.py:1"
    )
    return marked, list(map(str, problems))


def test_every_combination_is_a_point() -> None:
    """In the order written; the last argument varies first."""
    points = list_points({"rate": [0.1, 1e-5], "fused": [True, False]})
    assert [label(point) for point in points] == [
        "rate-0.1-fused-True",
        "rate-0.1-fused-False",
        "rate-1e-05-fused-True",
        "rate-1e-05-fused-False",
    ]
    assert list_points({}) == []


@pytest.mark.parametrize(
    ("sweep", "what"),
    [
        ([1], "is not a mapping"),
        ({"rate": 1}, "has no list of values for 'rate'"),
        ({"rate": []}, "has no list of values for 'rate'"),
        ({3: [1]}, "has an argument named 3"),
        ({"a/../b": [1]}, "has an argument named 'a/../b'"),
        ({"": [1]}, "has an argument named ''"),
        ({"rate": [float("nan")]}, "has rate=nan"),
        ({"file": ["1.confirm1"]}, "has file='1.confirm1'"),
        (
            {"x": ["1", "1-y-2"], "y": ["2-y-2", "2"]},
            "has two points named `x-1-y-2-y-2`",
        ),
        ({"rate": [None]}, "has rate=None"),
        ({"rate": [[1]]}, "has rate=[1]"),
        ({"file": ["../x"]}, "has file='../x'"),
        ({"file": ["a\n"]}, "has file='a\\n'"),
        ({"file": [""]}, "has file=''"),
        ({"rate": [1, 2, 1]}, "has rate=1 twice"),
        ({"rate": list(range(11)), "size": list(range(10))}, "has 110 points"),
        ({"file": ["x" * 96]}, f"makes the name `file-{'x' * 96}`, which is too long"),
    ],
)
def test_sweep_that_cannot_be_named_is_refused(sweep: Any, what: str) -> None:
    """A point is a directory, a job and a test: its values must be words, and each different."""
    mistake = find_mistake(sweep)
    assert mistake is not None and mistake[0] == what and mistake[1]
    _, problems = read("one", sweep=sweep)
    assert problems == [f"here.py:1: sweep of phase 'one' {what}; expected {mistake[1]}"]


def test_point_overrides_every_other_source(tmp_path: Path) -> None:
    """It keeps the key of its phase in the profile; arguments that differ make it another size."""
    profile = make_profile(
        tmp_path,
        sizes="small",
        phases={"one": {"args": {"rate": 0.5}, "sweep": {"rate": [0.1], "steps": [3]}}},
    )
    marked, _ = read("one", args={"rate": 1.0}, small={"steps": 3})
    assert marked is not None
    sweep: dict[str, list[Any]] = {"rate": [0.1, 0.2], "steps": [3]}
    point = marked.at({"rate": 0.1, "steps": 3}, sweep)
    assert list(point.points) == ["one-rate-0.1-steps-3", "one-rate-0.2-steps-3"]
    phases, problems = resolve_all([point], profile, ["one.args.width=7"])
    assert list(phases) == ["one-rate-0.1-steps-3"] and not problems["one"]
    phase = phases["one-rate-0.1-steps-3"]
    assert phase.argv() == ["--rate", "0.1", "--steps", "3", "--width", "7"]
    assert phase.args["rate"].source.endswith(": sweep")
    assert (phase.entry, phase.resized) == ("one", ("args.width", "args.rate"))


def test_swept_argument_cannot_be_set(tmp_path: Path) -> None:
    """The value of the command line would be lost, or all points would be the same."""
    profile = make_profile(tmp_path, phases={"one": None})
    marked, _ = read("one")
    assert marked is not None
    _, problems = resolve_all([marked.at({"rate": 1}, {"rate": [1]})], profile, ["one.args.rate=3"])
    assert [str(problem) for problem in problems["one"]] == [
        "--cluster-set: 'one.args.rate=3' sets an argument that phase `one` sweeps; expected an "
        "argument that it does not sweep"
    ]
