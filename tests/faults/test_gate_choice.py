"""In which phase a fault is staged, why none fits, and the small phase made from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clustersmoke.config.phase import parse_setting
from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.faults import FAULTS, HOOK, Fault
from pytest_clustersmoke.jobs import batch_script
from pytest_clustersmoke.jobs.backend import make_spec
from pytest_clustersmoke.session.gates import Candidate, alone, best, with_fault
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
    """A phase of the profile, as a candidate for staging a fault."""
    settings = [parse_setting(text) for text in marker.pop("settings", ())]
    of_class = {key: marker.pop(key) for key in ("proof_args",) if key in marker}
    cls: Any = SimpleNamespace(obj=SimpleNamespace(**of_class))
    item: Any = None
    phase = make_phase(profile, settings=settings, **marker)
    criteria: Any = tuple(SimpleNamespace(name=name) for name in TRAINED)
    return Candidate(item, cls, phase, frozenset(marks), criteria)


def choose(fault: str, profile: Profile, *candidates: Candidate) -> Candidate | str:
    return best(FAULTS[fault], candidates, profile)


def test_smallest_fitting_phase_is_chosen(tmp_path: Path) -> None:
    """Fewest nodes, then fewest ranks, then the first; a single rank cannot block others."""
    profile = make_profile(tmp_path)
    sizes = [(2, 2), (1, 8), (1, 2), (1, 2), (1, 1)]
    candidates = [candidate(profile, nodes=n, gpus_per_node=g) for n, g in sizes]
    assert choose("rank-killed", profile, *candidates) is candidates[2]
    assert choose("loss-flat", profile, *candidates) is candidates[4]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("rank-killed", "needs 2 ranks"),
        ("infiniband-off", "needs 2 nodes"),
        ("batch-arithmetic", "needs a phase that is marked `deepspeed`"),
        ("submission-refused", "one is no slurm cluster"),
        ("checkpoint-foreign", "needs a phase with test_reloaded_checkpoint_equals_the_saved"),
    ],
)
def test_fault_that_fits_no_phase_has_a_reason(tmp_path: Path, fault: str, reason: str) -> None:
    profile = make_profile(tmp_path)
    found = choose(fault, profile, candidate(profile))
    assert found == reason


def test_reason_is_that_of_the_closest_phase(tmp_path: Path) -> None:
    """Of several phases that do not fit, the closest gives the reason."""
    profile = make_profile(tmp_path)
    candidates = candidate(profile), candidate(profile, gpus_per_node=2)
    assert choose("no-gradient-sync", profile, *candidates) == "needs a phase that is marked `ddp`"


EXPECTED = {"intra_node": ["P2P/*", "SHM*"], "inter_node": ["NET/IB*"], "forbid": ["NET/Socket"]}


@pytest.mark.parametrize(
    ("fault", "expect", "reason"),
    [
        ("p2p-off", {"intra_node": ["P2P/*"]}, ""),
        ("p2p-off", {"intra_node": ["P2P/*", "SHM*"]}, "what remains, SHM/direct/direct, is"),
        ("p2p-off", {"inter_node": ["NET/IB*"]}, "cluster.yaml expects nothing of transports"),
        ("network-in-node", {"intra_node": ["P2P/*", "SHM*"], "forbid": ["NET/*"]}, ""),
        ("infiniband-off", {"inter_node": ["NET/IB*"]}, ""),
        ("infiniband-off", {"inter_node": ["NET/Socket"]}, "what remains, NET/Socket/0, is"),
    ],
)
def test_transport_is_switched_off_only_where_that_shows(
    tmp_path: Path, fault: str, expect: dict[str, Any], reason: str
) -> None:
    """The transport that remains must not be one that is expected."""
    profile = make_profile(tmp_path, hardware=CUDA, expect={"small": expect})
    found = choose(fault, profile, candidate(profile, nodes=2, gpus_per_node=2))
    assert reason in found if isinstance(found, str) else not reason


def test_nccl_faults_are_not_staged_with_gloo(tmp_path: Path) -> None:
    """On CPU the faults of NCCL's transports are not staged, and the reason is given."""
    profile = make_profile(tmp_path, expect={"small": {"intra_node": ["P2P/*"]}})
    found = choose("p2p-off", profile, candidate(profile, gpus_per_node=2))
    assert found == "the ranks of one talk over gloo, which has no transports of NCCL"


def test_staged_phase_is_small_and_has_the_fault(tmp_path: Path) -> None:
    """It has the marker's small sizes, except where the command line sets others. Limits only get
    shorter, the fault's settings are added, and the spec names fault, phase and last rank."""
    profile = make_profile(tmp_path, setup=["true"], stage_limits_s={"train_step": 5, "init": 90})
    fault = Fault(
        "rank-hung",
        "as a test has it",
        "rank",
        frozenset({"job"}),
        env={"NCCL_IB_DISABLE": "1"},
        stage_limits_s={"train_step": 10.0, "init": 20.0},
        timeout_s=1.0,
        setup=("false",),
        python_flags="-S",
    )
    chosen = candidate(
        profile,
        small={"hidden_size": 128, "steps": 30},
        args={"hidden_size": 4096, "steps": 100, "other": 1},
        settings=["small.args.steps=7"],
        gpus_per_node=2,
    )
    phase = with_fault(fault, chosen)
    spec = make_spec(phase, profile, "run", tmp_path)
    assert phase.name == spec["phase"] == "prove-rank-hung"
    assert spec["args"] == {"hidden_size": 128, "steps": 7, "other": 1}
    assert spec["stage_limits_s"]["train_step"] == 5 and spec["stage_limits_s"]["init"] == 20
    assert spec["timeout_s"] == 1 and spec["env_set"]["NCCL_IB_DISABLE"] == "1"
    assert spec["fault"] == {"name": "rank-hung", "base": "small", "rank": 1, "hook": HOOK}
    assert batch_script.setup(phase, profile) == ("true", "false")
    assert batch_script.interpreter(phase, profile).endswith(" -S")


def test_class_may_have_its_own_sizes_for_proofs(tmp_path: Path) -> None:
    """They override the marker's small sizes, also where the profile runs those."""
    profile = make_profile(tmp_path, sizes="small")
    args, small = {"steps": 100, "layers": 8}, {"steps": 30, "layers": 4}
    chosen = candidate(profile, args=args, small=small, proof_args={"layers": 2})
    assert {name: value.value for name, value in chosen.phase.args.items()} == small
    assert {name: value.value for name, value in alone(chosen).args.items()} == {
        "steps": 30,
        "layers": 2,
    }


def test_phase_for_comparison_has_the_same_size_and_no_fault(tmp_path: Path) -> None:
    """Its spec says so, so that it is not mistaken for a result of the cluster."""
    profile = make_profile(tmp_path)
    chosen = candidate(profile, small={"steps": 30}, args={"steps": 100})
    phase = alone(chosen)
    spec = make_spec(phase, profile, "run", tmp_path)
    assert (phase.name, spec["args"], spec["fault"]["name"]) == (
        "prove-nothing-small",
        {"steps": 30},
        "nothing",
    )
    normal = make_spec(chosen.phase, profile, "run", tmp_path)
    assert "fault" not in normal and batch_script.setup(chosen.phase, profile) == ()
