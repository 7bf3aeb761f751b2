"""Which phase a fault is staged in, why none fits, and the small phase made from the choice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clustersmoke.config.phase import parse_setting
from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.faults import FAULTS, HOOK, Fault
from pytest_clustersmoke.jobs import batch_script
from pytest_clustersmoke.jobs.backend import make_spec
from pytest_clustersmoke.session.gates import (
    Candidate,
    choose_candidate,
    read_detections,
    with_fault,
    without_fault,
)
from tests.support.evidence import make_phase, make_profile

TRAINED = {
    "test_all_steps_are_done",
    "test_gradients_are_in_sync",
    "test_loss_over_all_ranks_falls",
    "test_transports_inside_nodes_are_those_expected",
    "test_transports_between_nodes_are_those_expected",
}
CUDA = {"gpu": "any", "device": "cuda", "gpus_per_node": 8}


def candidate(profile: Profile, marks: tuple[str, ...] = (), **marker: Any) -> Candidate:
    """Make a candidate phase for a fault."""
    settings = [parse_setting(text) for text in marker.pop("settings", ())]
    of_class = {key: marker.pop(key) for key in ("proof_args",) if key in marker}
    cls: Any = SimpleNamespace(obj=SimpleNamespace(**of_class))
    item: Any = None
    phase = make_phase(profile, settings=settings, **marker)
    criteria: Any = tuple(SimpleNamespace(name=name) for name in TRAINED)
    return Candidate(item, cls, phase, frozenset(marks), criteria)


def chosen(fault: str, profile: Profile, *candidates: Candidate) -> Candidate | str:
    return choose_candidate(FAULTS[fault], candidates, profile)


def test_smallest_fitting_phase_is_chosen(tmp_path: Path) -> None:
    """Fewest nodes, then fewest ranks, then the first; `rank-killed` needs two ranks."""
    profile = make_profile(tmp_path)
    sizes = [(2, 2), (1, 8), (1, 2), (1, 2), (1, 1)]
    candidates = [candidate(profile, nodes=n, gpus_per_node=g) for n, g in sizes]
    assert chosen("rank-killed", profile, *candidates) is candidates[2]
    assert chosen("loss-flat", profile, *candidates) is candidates[4]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("rank-killed", "needs 2 ranks"),
        ("infiniband-off", "needs 2 nodes"),
        ("batch-arithmetic", "needs a phase marked `deepspeed`"),
        ("submission-refused", "one is not a slurm cluster"),
        ("checkpoint-foreign", "needs a phase with test_reloaded_checkpoint_equals_the_saved"),
    ],
)
def test_reason_why_a_fault_is_not_staged(tmp_path: Path, fault: str, reason: str) -> None:
    """The reason says what the phase lacks."""
    profile = make_profile(tmp_path)
    assert chosen(fault, profile, candidate(profile)) == reason


def test_closest_phase_gives_the_reason(tmp_path: Path) -> None:
    """Of several phases that do not fit, the closest one gives the reason."""
    profile = make_profile(tmp_path)
    small, larger = candidate(profile), candidate(profile, gpus_per_node=2)
    assert chosen("no-gradient-sync", profile, small, larger) == "needs a phase marked `ddp`"


def test_criteria_of_a_suite_must_or_may_detect_a_fault() -> None:
    """The mark `detects` names the faults; `required=False` allows red and does not demand it."""

    def criterion(name: str, mark: pytest.MarkDecorator) -> Any:
        return SimpleNamespace(name=name, iter_markers=lambda _: [mark.mark])

    first = criterion("test_sums", pytest.mark.detects("result-corrupted", "loss-nan"))
    second = criterion("test_weights", pytest.mark.detects("loss-nan", required=False))
    cls: Any = SimpleNamespace(criteria=[first, second])
    must, may = read_detections(cls)
    assert must["result-corrupted"] == must["loss-nan"] == {"test_sums"} and not must["loss-flat"]
    assert may["loss-nan"] == {"test_weights"} and not may["result-corrupted"]


EXPECTED = {"intra_node": ["P2P/*", "SHM*"], "inter_node": ["NET/IB*"], "forbid": ["NET/Socket"]}


@pytest.mark.parametrize(
    ("fault", "expect", "reason"),
    [
        ("p2p-off", {"intra_node": ["P2P/*"]}, ""),
        (
            "p2p-off",
            {"intra_node": ["P2P/*", "SHM*"]},
            "`expect` accepts the transport that remains inside nodes: SHM/direct/direct",
        ),
        ("p2p-off", {"inter_node": ["NET/IB*"]}, "cluster.yaml states no expected transports"),
        ("network-in-node", {"intra_node": ["P2P/*", "SHM*"], "forbid": ["NET/*"]}, ""),
        ("infiniband-off", {"inter_node": ["NET/IB*"]}, ""),
        ("infiniband-off", {"gpudirect": "required"}, ""),
        (
            "infiniband-off",
            {"inter_node": ["NET/Socket"]},
            "`expect` accepts the transport that remains between nodes: NET/Socket/0",
        ),
    ],
)
def test_transport_is_disabled_only_if_criteria_can_see_it(
    tmp_path: Path, fault: str, expect: dict[str, Any], reason: str
) -> None:
    """They can if the transport that remains is not an expected one."""
    profile = make_profile(tmp_path, hardware=CUDA, expect={"small": expect})
    choice = chosen(fault, profile, candidate(profile, nodes=2, gpus_per_node=2))
    assert reason in choice if isinstance(choice, str) else not reason


def test_nccl_transports_are_not_staged_under_gloo(tmp_path: Path) -> None:
    """On CPU the faults of NCCL's transports are not staged, with the reason."""
    profile = make_profile(tmp_path, expect={"small": {"intra_node": ["P2P/*"]}})
    choice = chosen("p2p-off", profile, candidate(profile, gpus_per_node=2))
    assert choice == "the ranks of one communicate over gloo, which has no NCCL transports"


def test_staged_phase_is_small_and_has_the_fault(tmp_path: Path) -> None:
    """It has the marker's small sizes, unless the command line sets one, and the fault's settings;
    limits only shrink; the spec names the fault, the phase and the last rank."""
    profile = make_profile(tmp_path, setup=["true"], stage_limits_s={"train_step": 5, "init": 90})
    fault = Fault(
        "rank-hung",
        "a fault of this test",
        "rank",
        frozenset({"job"}),
        env={"NCCL_IB_DISABLE": "1"},
        stage_limits_s={"train_step": 10.0, "init": 20.0},
        timeout_s=1.0,
        setup=("false",),
        python_flags="-S",
    )
    base = candidate(
        profile,
        small={"hidden_size": 128, "steps": 30},
        args={"hidden_size": 4096, "steps": 100, "other": 1},
        settings=["small.args.steps=7"],
        gpus_per_node=2,
    )
    phase = with_fault(fault, base)
    spec = make_spec(phase, profile, PhaseDir(tmp_path))
    assert phase.name == spec["phase"] == "prove-rank-hung"
    assert spec["args"] == {"hidden_size": 128, "steps": 7, "other": 1}
    assert spec["stage_limits_s"]["train_step"] == 5 and spec["stage_limits_s"]["init"] == 20
    assert spec["timeout_s"] == 1 and spec["env_set"]["NCCL_IB_DISABLE"] == "1"
    assert spec["fault"] == {"name": "rank-hung", "base": "small", "rank": 1, "hook": HOOK}
    assert batch_script.setup_lines(phase, profile) == ("true", "false")
    assert batch_script.python_command(phase, profile).endswith(" -S")


def test_class_may_set_sizes_for_proofs(tmp_path: Path) -> None:
    """They override the marker's small sizes, even if the profile runs those."""
    profile = make_profile(tmp_path, sizes="small")
    args, small = {"steps": 100, "layers": 8}, {"steps": 30, "layers": 4}
    base = candidate(profile, args=args, small=small, proof_args={"layers": 2})
    assert {name: value.value for name, value in base.phase.args.items()} == small
    assert {name: value.value for name, value in without_fault(base).args.items()} == {
        "steps": 30,
        "layers": 2,
    }


def test_baseline_phase_has_the_same_size_and_no_fault(tmp_path: Path) -> None:
    """Its spec names the fault `nothing`, so that it never counts as a result of the cluster."""
    profile = make_profile(tmp_path)
    base = candidate(profile, small={"steps": 30}, args={"steps": 100})
    phase = without_fault(base)
    spec = make_spec(phase, profile, PhaseDir(tmp_path))
    assert (phase.name, spec["args"], spec["fault"]["name"]) == (
        "prove-nothing-small",
        {"steps": 30},
        "nothing",
    )
    normal = make_spec(base.phase, profile, PhaseDir(tmp_path))
    assert "fault" not in normal and batch_script.setup_lines(base.phase, profile) == ()
