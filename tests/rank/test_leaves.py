"""Proofs of models that FSDP2 shards: local gradients, digests, replicas, and what breaks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_clustersmoke.rank.gradients import Probe
from pytest_clustersmoke.rank.leaves import (
    Groups,
    Leaves,
    find_part,
    gather_whole,
    is_partitioned,
    local_part,
    shares_sums,
)
from pytest_clustersmoke.rank.rank_environment import RankMisuse
from tests.rank.conftest import Run

RANKS, LAST = 4, 6


class Sharded:
    """What `Leaves` sees of a DTensor."""

    full_tensor = None


def test_plain_tensors_are_their_own_leaves() -> None:
    """Nothing is gathered, and a watcher sees each gradient once until the end."""
    model = torch.nn.Linear(3, 2)
    parameters = list(model.parameters())
    assert [gather_whole(p) for p in parameters] == parameters == [*map(local_part, parameters)]
    assert find_part(parameters[0]) == ()
    leaves = Leaves(None, parameters)
    assert leaves.tensors == parameters
    seen: list[int] = []
    leaves.watch(lambda index, gradient: seen.append(index))
    model(torch.ones(3)).sum().backward()
    leaves.close()
    model(torch.ones(3)).sum().backward()
    assert sorted(seen) == [0, 1]


class Group:
    """What `Groups` sees of a process group."""

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = (lambda: size), (lambda: rank)


def test_parts_of_a_split_model_are_known_by_the_marks_of_megatron(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks of one model hold different parts of what is split, and replicas of the rest."""
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    groups = Groups(model=Group(2, 1), data=Group(2, 0))
    split, whole = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    split.tensor_model_parallel = True  # type: ignore[attr-defined]
    assert (find_part(split, groups), find_part(whole, groups), find_part(split)) == ((1,), (), ())
    assert groups.replicas == 2
    assert Groups(Group(1, 0), Group(4, 0), sequence_parts=2).replicas == 2
    with pytest.raises(RankMisuse, match=r"groups of 2 ranks \(model\) and 4 \(data\)"):
        Groups(model=Group(2, 1), data=Group(4, 0))


@pytest.mark.parametrize(
    ("size", "on_gpus", "sharp", "shared"),
    [
        (1, False, None, False),
        (2, False, None, True),
        (2, True, None, False),
        (2, True, "1", False),
        (2, True, "0", True),
    ],
)
def test_tensor_parallel_ranks_share_sums_unless_the_switch_may_add_them(
    monkeypatch: pytest.MonkeyPatch, size: int, on_gpus: bool, sharp: str | None, shared: bool
) -> None:
    """NVLink SHARP adds in any order: then ranks that differ show nothing about a device."""
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    if sharp is not None:
        monkeypatch.setenv("NCCL_NVLS_ENABLE", sharp)
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", on_gpus, raising=False)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].tp_group = Group(size, 0)  # type: ignore[assignment]
    assert shares_sums(model) is shared


def test_parameters_that_fsdp1_flattened_are_parts_that_cannot_be_proven() -> None:
    """No two ranks hold the same part, so none of them differ; a proof of them is refused."""
    flat = torch.nn.Parameter(torch.zeros(4))
    assert not is_partitioned([flat])
    flat._fsdp_flattened = True  # type: ignore[attr-defined]  # as torch marks it
    assert is_partitioned([flat])
    with pytest.raises(RankMisuse, match="FullyShardedDataParallel"):
        Probe([("flat", flat)], lambda p: p.grad, "fp32", 1.0, 1)


def test_sharded_parameters_need_their_model() -> None:
    """Only the model gathers them."""
    with pytest.raises(RankMisuse, match="the parameters are sharded; expected the model"):
        Leaves(None, [Sharded()])


@pytest.mark.slow
def test_sharded_model_is_proven_like_a_plain_one(torchrun: Callable[..., Run]) -> None:
    """Over all ranks, and within two groups that hold replicas: local gradients and digests are
    those of a plain model, training is left as it was, and a missing reduction, a replica that
    drifted and a rank that disagrees with itself are found."""
    pytest.importorskip("torch", "2.6")  # its first `fully_shard`
    run = torchrun("sharded.py", ranks=RANKS)
    assert run.status == 0, run.output
    for rank in range(RANKS):
        cases = split_cases(run.events(rank).records)
        equal = {name: facts["equal"] for name, (facts, _) in cases.items() if "equal" in facts}
        names = ("gradients", "digest", "left as it was 0", "left as it was 1")
        assert equal == dict.fromkeys(names, True)
        for name in ("healthy 0", "healthy 1", "bf16"):
            first, last = proofs_of(cases[name])
            for proof in (first, last):
                assert proof["gradients"]["synced"] and proof["gradients"]["sensitive"]
                assert (proof["replayed"], proof["differing_count"]) == (8, 0)
                assert (proof["cross"]["compared"], proof["cross"]["alone"]) == (8, None)
        assert only(cases["healthy 0"], "replicas")["sharded"] is True
        assert only(cases["healthy 1"], "replicas")["equal"] is True
        assert [p["gradients"]["synced"] for p in proofs_of(cases["without reduction"])] == [
            True,
            False,
        ]
        for name, synced in (("verified", True), ("verified unreduced", False)):
            compared = only(cases[name], "gradients")
            assert (compared["synced"], compared["sensitive"]) == (synced, True)
            assert cases[f"{name}: result"][0]["synced"] is synced
        drifted = only(cases["drifted replica"], "replicas")
        assert (drifted["equal"], drifted["differ_at"]) == (False, LAST)
        assert drifted["groups"] == [[1], [3]]  # those that hold the part
        wrong = [proof["differing_count"] for proof in proofs_of(cases["wrong pass"])]
        assert wrong[0] == 0 and (wrong[1] > 0) is (rank == 1)


Case = tuple[dict[str, Any], list[dict[str, Any]]]


def split_cases(records: list[dict[str, Any]]) -> dict[str, Case]:
    """Name of a case -> its facts and the events that follow; equal names are numbered."""
    cases: list[Case] = []
    for record in records:
        if record["event"] == "fact":
            cases.append((record["values"], []))
        elif cases:
            cases[-1][1].append(record)
    names = [facts["case"] for facts, _ in cases]
    numbered = [
        f"{name} {names[:at].count(name)}" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]
    return dict(zip(numbered, cases, strict=True))


def proofs_of(case: Case) -> list[dict[str, Any]]:
    """Those of the first and of the last step."""
    proofs = [record for record in case[1] if record["event"] == "proof"]
    assert [proof["step"] for proof in (proofs[0], proofs[-1])] == [1, LAST]
    return [proofs[0], proofs[-1]]


def only(case: Case, event: str) -> dict[str, Any]:
    (record,) = (record for record in case[1] if record["event"] == event)
    return record
