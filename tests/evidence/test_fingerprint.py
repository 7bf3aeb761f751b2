"""Fingerprints of phases: runs with different fingerprints are not compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_clustersmoke.evidence.fingerprint import Fingerprint, fingerprint_of
from pytest_clustersmoke.evidence.run_directory import write_json
from tests.support.evidence import Evidence


def ran(folder: Path, *starts: dict[str, Any], per_node: int = 2) -> Fingerprint:
    """The fingerprint of a phase whose ranks started with these events."""
    evidence = Evidence(folder, len(starts) // per_node, per_node)
    for rank, start in enumerate(starts):
        evidence.rank(rank, ("start", {"rank": rank, "node": f"n{rank // per_node}", **start}))
    return fingerprint_of(evidence.result())


H100 = {"device": "cuda:0", "device_name": "NVIDIA H100", "torch": "2.5.1", "nccl": "2.21.5"}
A100 = {**H100, "device_name": "NVIDIA A100"}


def test_hardware_counts_devices_by_node(tmp_path: Path) -> None:
    """Two nodes with two H100 each; a node with another GPU is shown apart."""
    assert ran(tmp_path / "a", *[H100] * 4).hardware == "2 x (2 x NVIDIA H100)"
    mixed = ran(tmp_path / "b", H100, H100, H100, A100).hardware
    assert mixed == "1 x (1 x NVIDIA A100 + 1 x NVIDIA H100) and 1 x (2 x NVIDIA H100)"


def test_device_without_a_name_shows_its_kind(tmp_path: Path) -> None:
    """CPUs have no name; for a rank that wrote nothing even the kind is unknown."""
    assert ran(tmp_path / "a", {"device": "cpu"}, {}).hardware == "1 x (1 x cpu + 1 x unknown)"


def test_versions_cover_all_ranks(tmp_path: Path) -> None:
    """If ranks differ, both versions are listed; a version that no rank reported is missing."""
    fingerprint = ran(tmp_path, H100, {**H100, "nccl": "2.19.3"})
    assert fingerprint.versions == {"torch": "2.5.1", "nccl": "2.19.3 and 2.21.5"}


def test_the_shape_follows_the_arguments(tmp_path: Path) -> None:
    """Other arguments, or other counts of nodes and ranks, are another shape."""
    first, second = ran(tmp_path / "a", *[H100] * 4), ran(tmp_path / "b", *[H100] * 4, per_node=4)
    assert first.shape == '{"nodes": 2, "ranks_per_node": 2}' != second.shape


def shape_of(folder: Path, **spec: Any) -> dict[str, Any]:
    evidence = Evidence(folder, 2, 4)
    write_json(evidence.dir.spec, {"phase": "small", "nodes": 2, "ranks_per_node": 4, **spec})
    shape: dict[str, Any] = json.loads(fingerprint_of(evidence.result()).shape)
    return shape


def test_the_shape_follows_the_environment_and_options_of_sbatch(tmp_path: Path) -> None:
    """The shape has digests of the variables that are set or unset and of the sbatch options, in
    any order; options that only say when and for whom a job runs, or where not, are left out."""
    sets = {"NCCL_IB_HCA": "mlx5_0", "A": "1"}
    spec: dict[str, Any] = {
        "args": {"steps": 5},
        "env_set": sets,
        "env_unset": ["B", "C"],
        "sbatch": {"mem": 0},
    }
    shape = shape_of(tmp_path / "one", **spec)
    assert shape["steps"] == 5 and len(shape["env"]) == len(shape["sbatch"]) == 8
    turned = {"env_set": dict(reversed(sets.items())), "env_unset": ["C", "B"]}
    queue = {"time": "10:00", "account": "a", "requeue": False, "constraint": None, "mem": 0}
    queue["exclude"] = "n7"
    assert shape_of(tmp_path / "same", **{**spec, **turned, "sbatch": queue}) == shape
    others: list[tuple[str, dict[str, Any]]] = [
        ("env", {"env_set": {**sets, "NCCL_IB_DISABLE": "1"}}),
        ("env", {"env_unset": ["B"]}),
        ("sbatch", {"sbatch": {"mem": 0, "constraint": "h100"}}),
    ]
    for number, (key, other) in enumerate(others):
        changed = shape_of(tmp_path / str(number), **{**spec, **other})
        assert {name for name in shape if changed[name] != shape[name]} == {key}
    assert shape_of(tmp_path / "bare") == {"nodes": 2, "ranks_per_node": 4}


def test_new_token_is_no_other_shape(tmp_path: Path) -> None:
    """A CI job may have one of its own; no other variable is left out."""
    one, other = (
        shape_of(tmp_path / token, env_set={"HF_TOKEN": token, "A": "1"}) for token in "xy"
    )
    assert one == other != shape_of(tmp_path / "none", env_set={"A": "1"})


def test_runs_with_a_twin_run_are_compared_with_their_like(tmp_path: Path) -> None:
    """Their steps do more work. Earlier versions did not write `proof: sampled`."""
    assert shape_of(tmp_path / "twin", proof="twin")["proof"] == "twin"
    assert shape_of(tmp_path / "sampled", proof="sampled") == shape_of(tmp_path / "bare")


def test_phase_that_stops_and_goes_on_is_compared_with_its_like(tmp_path: Path) -> None:
    """Its rates are those of the steps after the stop."""
    assert shape_of(tmp_path / "five", resume=5)["resume"] == 5
    assert shape_of(tmp_path / "never", resume=False) == shape_of(tmp_path / "bare")


def test_arguments_do_not_hide_other_keys_of_a_shape(tmp_path: Path) -> None:
    """A program's `--env` and `--nodes` have other keys than the job's own."""
    shape = shape_of(tmp_path, args={"env": "x", "nodes": 7}, env_set={"A": "1"})
    assert (shape["nodes"], shape["args.nodes"], shape["args.env"]) == (2, 7, "x")
    assert shape["env"] != "x"


def test_hostile_names_are_cleaned_and_cut(tmp_path: Path) -> None:
    """A rank's device name is sanitized and cut."""
    start = {"device": "cuda:0", "device_name": "\x1b[31m" + "x" * 10_000, "torch": "a\nb"}
    fingerprint = ran(tmp_path, start, start)
    assert "\x1b" not in fingerprint.hardware and len(fingerprint.hardware) < 300
    assert fingerprint.versions == {"torch": "a b"}
