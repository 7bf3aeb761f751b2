"""A phase from marker and profile: precedence, sources, environment, program arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config import sbatch_options
from pytest_clustersmoke.config.marker import Needs, read_marker, size_mark
from pytest_clustersmoke.config.phase import Sourced, check_order, explain_absence, parse_setting
from tests.support.evidence import make_phase, make_profile


def setting(text: str) -> Any:
    return [parse_setting(text)]


def test_precedence_of_resources(tmp_path: Path) -> None:
    """Marker, then the cluster's phase, then --cluster-set; each value keeps its source."""
    plain = make_profile(tmp_path)
    assert make_phase(plain, nodes=3).nodes == Sourced(3, "test_x.py:1")
    profile = make_profile(tmp_path, phases={"small": {"nodes": 2, "timeout_s": 5}})
    phase = make_phase(profile, nodes=3)
    assert phase.nodes.value == 2 and phase.nodes.source.endswith("cluster.yaml:13")
    assert phase.timeout_s.value == 5
    phase = make_phase(profile, nodes=3, settings=setting("small.nodes=4"))
    assert phase.nodes == Sourced(4, "--cluster-set")


def test_precedence_of_options(tmp_path: Path) -> None:
    """A phase's sbatch option wins over the cluster's; other options stay."""
    profile = make_profile(
        tmp_path,
        backend="slurm",
        slurm={"partition": "a", "qos": "low"},
        phases={"small": {"slurm": {"qos": "high"}}},
    )
    phase = make_phase(profile, settings=setting("small.slurm.time=5"))
    assert {key: sourced.value for key, sourced in phase.slurm.items()} == {
        "partition": "a",
        "qos": "high",
        "time": 5,
    }


def test_dropped_time_limit_does_not_shorten_the_phase(tmp_path: Path) -> None:
    """A phase that drops the cluster's `time`, in the file or for one run, keeps its own limit."""
    cluster: dict[str, Any] = {"backend": "slurm", "slurm": {"time": "00:05:00"}}
    limited = make_profile(tmp_path, **cluster)
    assert make_phase(limited, timeout_s=1000).timeout_s.value == 240
    without = setting("small.slurm.time=")
    assert make_phase(limited, timeout_s=1000, settings=without).timeout_s.value == 1000
    dropped = make_profile(tmp_path, **cluster, phases={"small": {"slurm": {"time": False}}})
    assert make_phase(dropped, timeout_s=1000).timeout_s.value == 1000


def test_marker_says_what_a_phase_writes(tmp_path: Path) -> None:
    """The profile's own value wins; small sizes write next to nothing."""
    needs = Needs(writes_gib=14)
    assert make_phase(make_profile(tmp_path), needs=needs).writes_gib == 14
    assert make_phase(make_profile(tmp_path, sizes="small"), needs=needs).writes_gib == 0
    profile = make_profile(tmp_path, phases={"small": {"writes_gib": 2.5}})
    assert make_phase(profile, needs=needs).writes_gib == 2.5


FULL, SMALL = {"layers": 8, "steps": 100, "seed": 1}, {"layers": 2, "steps": 3}


@pytest.mark.parametrize("sizes", ["full", "small"])
def test_small_arguments_apply_if_sizes_is_small(tmp_path: Path, sizes: str) -> None:
    """Other profiles use `small` only for staged faults; the profile's own arguments win over
    both."""
    profile = make_profile(tmp_path, sizes=sizes, phases={"small": {"args": {"steps": 7}}})
    phase = make_phase(profile, args=FULL, small=SMALL)
    layers = Sourced(2, "test_x.py:1: small") if sizes == "small" else Sourced(8, "test_x.py:1")
    assert phase.args["layers"] == layers
    assert (phase.args["steps"].value, phase.args["seed"].value) == (7, 1)
    assert {name: sourced.value for name, sourced in phase.small.items()} == SMALL


def test_arguments_are_merged_by_name(tmp_path: Path) -> None:
    """The cluster replaces single arguments of the marker and keeps the others."""
    profile = make_profile(tmp_path, phases={"small": {"args": {"steps": 2}}})
    phase = make_phase(
        profile, args={"steps": 1, "layers": 4}, settings=setting("small.args.lr=1e-3")
    )
    assert {name: sourced.value for name, sourced in phase.args.items()} == {
        "steps": 2,
        "layers": 4,
        "lr": 0.001,
    }


def test_sizes_changed_on_the_command_line_are_known(tmp_path: Path) -> None:
    """Arguments and resources count; a time limit is no size, and neither is what the profile
    changes, where the references are written as well."""
    profile = make_profile(tmp_path, phases={"small": {"nodes": 3, "args": {"layers": 2}}})
    assert make_phase(profile).resized == ()
    texts = ("small.timeout_s=90", "small.gpus_per_node=2", "small.args.steps=5")
    settings = [parse_setting(text) for text in texts]
    assert make_phase(profile, settings=settings).resized == ("gpus_per_node", "args.steps")


def test_twin_run_is_asked_for_by_phase(tmp_path: Path) -> None:
    """In the profile or for one run; the rank reads it in its spec. References stand beside what
    the profile asks for, and do not hold for what the command line does: watching for a twin run
    takes time and memory."""
    listed = make_profile(tmp_path, phases={"small": {"proof": "twin"}})
    chosen = make_phase(make_profile(tmp_path), settings=setting("small.proof=twin"))
    assert make_phase(make_profile(tmp_path)).proof == Sourced("sampled", "default")
    assert make_phase(listed).proof.value == chosen.proof.value == "twin"
    assert make_phase(listed).resized == () and chosen.resized == ("proof: twin",)
    sampled = make_phase(listed, settings=setting("small.proof=sampled"))
    assert sampled.resized == ("proof: sampled",)


def test_settings_of_other_phases_change_nothing(tmp_path: Path) -> None:
    """--cluster-set of one phase leaves the others alone."""
    profile = make_profile(tmp_path)
    assert make_phase(profile, settings=setting("other.nodes=4")) == make_phase(profile)


@pytest.mark.parametrize(
    ("args", "argv"),
    [
        ({"steps": 5}, ["--steps", "5"]),
        ({"hidden_size": 8}, ["--hidden-size", "8"]),
        ({"fast": True, "slow": False, "none": None}, ["--fast"]),
        ({"sizes": [1, 2]}, ["--sizes", "1", "2"]),
        ({"name": "a b"}, ["--name", "a b"]),
        ({"rate": 0.5}, ["--rate", "0.5"]),
    ],
)
def test_arguments_become_flags(tmp_path: Path, args: dict[str, Any], argv: list[str]) -> None:
    """true is the bare flag, false and null omit it, and the values of a list follow one flag."""
    assert make_phase(make_profile(tmp_path), args=args).argv() == argv


def test_later_environment_block_wins(tmp_path: Path) -> None:
    """The order is common, then the block for the number of nodes, then the phase's own."""
    profile = make_profile(
        tmp_path,
        env={
            "common": {"set": {"A": "common", "B": "common"}, "unset": ["C"]},
            "single_node": {"set": {"B": "single"}},
            "multi_node": {"set": {"C": "multi"}, "unset": ["A"]},
        },
        phases={"small": {"env": {"set": {"D": "phase"}, "unset": ["B"]}}},
    )
    single, several = make_phase(profile), make_phase(profile, nodes=2)
    assert {name: value.value for name, value in single.env_set.items()} == {
        "A": "common",
        "D": "phase",
    }
    assert set(single.env_unset) == {"C", "B"}
    assert {n: v.value for n, v in several.env_set.items()} == {"C": "multi", "D": "phase"}
    assert set(several.env_unset) == {"A", "B"}


def test_the_command_line_sets_a_variable_last(tmp_path: Path) -> None:
    """--cluster-set PHASE.env.X wins over every block; its text is not read as YAML."""
    profile = make_profile(tmp_path, env={"common": {"unset": ["A"]}})
    phase = make_phase(profile, settings=setting("small.env.A=01"))
    assert phase.env_set["A"] == Sourced("01", "--cluster-set")
    assert "A" not in phase.env_unset


def test_the_block_follows_the_nodes_of_the_command_line(tmp_path: Path) -> None:
    """A phase set to two nodes by --cluster-set gets the environment for several nodes."""
    profile = make_profile(
        tmp_path,
        env={"single_node": {"set": {"A": "1"}}, "multi_node": {"set": {"B": "1"}}},
    )
    assert set(make_phase(profile, settings=setting("small.nodes=2")).env_set) == {"B"}


@pytest.mark.parametrize(
    ("nodes", "gpus", "mark"), [(1, 1, "singlegpu"), (1, 2, "multigpu"), (2, 1, "multinode")]
)
def test_size_marks(nodes: int, gpus: int, mark: str) -> None:
    """Several nodes count before several GPUs."""
    assert size_mark(nodes, gpus) == mark


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a.nodes=2", ("a", "nodes", "", 2)),
        ("a-b.args.x=true", ("a-b", "args", "x", True)),
        ("a.args.list=[1, 2]", ("a", "args", "list", (1, 2))),
        ("a.args.x=b=c", ("a", "args", "x", "b=c")),
        ("a.args.x=", ("a", "args", "x", None)),
        ("a.args.rate=1e-3", ("a", "args", "rate", 0.001)),
        ("a.args.hidden-size=8", ("a", "args", "hidden_size", 8)),
        ("a.slurm.time=01:00:00", ("a", "slurm", "time", "01:00:00")),
        ("a.args.word=yes", ("a", "args", "word", "yes")),
        ("a.env.X=true", ("a", "env", "X", "true")),
        ("a.proof=twin", ("a", "proof", "", "twin")),
        ("a.proof_steps=9", ("a", "proof_steps", "", 9)),
        ("a.stage_limits_s.init=0.5", ("a", "stage_limits_s", "init", 0.5)),
    ],
)
def test_settings_are_read(text: str, parsed: object) -> None:
    """PHASE.KEY=VALUE; values are read as in cluster.yaml, and variables as text."""
    assert parse_setting(text) == parsed


def test_absence_is_explained(tmp_path: Path) -> None:
    """A phase that a cluster does not list is reported with what the cluster lacks."""
    profile = make_profile(
        tmp_path, hardware={"gpu": "any", "device": "cpu", "gpus_per_node": 2, "nodes": 2}
    )

    def why(**marker: Any) -> str:
        args = {"script": __file__, **marker}
        marked, _ = read_marker(("big",), args, Path(__file__), "x:1")
        assert marked is not None
        return explain_absence(marked, profile)

    assert (
        why(gpus_per_node=8) == "big does not run on one: it needs 8 GPUs per node, and one has 2"
    )
    assert why(nodes=3) == "big does not run on one: it needs 3 nodes, and one has 2"
    assert why() == "big does not run on one: its profile does not list it under `phases`"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (10, 600),
        ("90", 5400),
        ("2:30", 150),
        ("01:00:00", 3600),
        ("1-2", 93600),
        ("1-02:30", 95400),
        ("1-02:30:10", 95410),
        ("UNLIMITED", float("inf")),
    ],
)
def test_every_form_of_time_limit_is_read(text: Any, seconds: float) -> None:
    """Every form of man sbatch, in seconds."""
    assert sbatch_options.parse_time_limit(text) == seconds


def test_phase_ends_before_its_job(tmp_path: Path) -> None:
    """The phase's limit leaves a minute for dumps before the job's time limit."""
    profile = make_profile(tmp_path, backend="slurm", phases={"small": {"slurm": {"time": 30}}})
    phase = make_phase(profile, timeout_s=3600.0)
    assert phase.timeout_s.value == 1740 and "slurm.time" in phase.timeout_s.source


def test_phase_that_is_asked_to_stop_has_the_rest_to_save_its_progress(tmp_path: Path) -> None:
    """Slurm's signal comes before the job's time limit, and the program needs what follows."""
    profile = make_profile(tmp_path, backend="slurm", phases={"small": {"slurm": {"time": 30}}})
    assert make_phase(profile, timeout_s=3600.0, resume=True).timeout_s.value == 3600


def test_order_of_phases_has_a_first_one(tmp_path: Path) -> None:
    """A phase that would run after itself could never start, and is refused with its place."""
    profile = make_profile(tmp_path)
    order = {"a": "c", "b": "a", "c": "b", "d": "a", "e": "gone"}
    phases = [
        make_phase(profile, "small", after=before, where=f"t.py:{line}")
        for line, before in enumerate(order.values(), start=1)
    ]
    phases = [replace(phase, name=name) for name, phase in zip(order, phases, strict=True)]
    text = "\n".join(str(problem) for problem in check_order(phases, {*order, "gone"}))
    assert "t.py:1: phase `a` would run after itself: a after c after b after a" in text
    assert "t.py:2" in text and "t.py:3" in text and "t.py:4" not in text and "t.py:5" not in text


def test_unknown_phase_in_an_order_is_named(tmp_path: Path) -> None:
    """With a near match."""
    phase = make_phase(make_profile(tmp_path), after="mlp_1gp")
    (problem,) = check_order([phase], {"small", "mlp_1gpu"})
    assert "runs after `mlp_1gp`, which no test defines" in str(problem)
    assert "did you mean `mlp_1gpu`?" in str(problem)
