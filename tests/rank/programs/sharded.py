"""Proofs of a model that FSDP2 shards, on four ranks: facts of each case, for test_leaves.py."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pytest_clustersmoke.rank import Proof, Rank
from pytest_clustersmoke.rank.leaves import Leaves

WIDTH, STEPS = 16, 6


def build() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)),
        nn.Sequential(nn.Linear(WIDTH, 31), nn.Dropout(0.1), nn.Linear(31, WIDTH)),
    )


def build_sharded(shape: tuple[int, ...], compute: torch.dtype = torch.float32) -> Any:
    model = build()
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for unit in (*model, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    return model


def batch(index: int, rank: int) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * index + rank))


def train(rank: Rank, model: Any, proven: bool, harm: Any = None, precision: str = "fp32") -> str:
    """Train; `harm(model, index)` is called before each step. Returns a digest of the weights."""
    torch.manual_seed(7 + rank.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_on(index: int, other: int) -> torch.Tensor:
        loss: torch.Tensor = model(batch(index, other)).float().square().mean()
        return loss

    proof = Proof(
        model,
        lambda index: loss_on(index, rank.rank),
        optimizer=optimizer,
        precision=precision,
        peer_loss=loss_on,
    )
    for step in rank.steps(STEPS, samples_per_rank=8, proof=proof if proven else None):
        if harm is not None:
            harm(model, step.index)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_on(step.index, rank.rank)
        loss.backward()
        step.backward_done()
        optimizer.step()
        step.record(loss=loss)
    return rank.digest(model.state_dict()).hex


def verify(rank: Rank, model: Any) -> bool:
    """A program without a `Proof` compares one pass."""

    def loss_of() -> torch.Tensor:
        loss: torch.Tensor = model(batch(0, rank.rank)).square().mean()
        return loss

    torch.manual_seed(7)  # of dropout, alike in both passes
    return rank.verify_gradients(
        model.named_parameters(),
        local_loss=loss_of,
        backward=lambda: loss_of().backward(),
        model=model,
    )


def compare_gradients(rank: Rank) -> bool:
    """Whether the local gradients of the sharded model are bit for bit those of a plain one."""
    plain, sharded = build().eval(), build_sharded((rank.world_size,)).eval()
    inputs = batch(0, rank.rank)
    expected = torch.autograd.grad(plain(inputs).square().mean(), list(plain.parameters()))
    leaves = Leaves(sharded, sharded.parameters())
    seen: dict[int, torch.Tensor] = {}
    leaves.watch(lambda index, gradient: seen.update({index: gradient.clone()}))
    loss = sharded(inputs).square().mean()
    found = torch.autograd.grad(loss, leaves.tensors)
    sharded(inputs).square().mean().backward()
    leaves.close()
    watched = [seen[index] for index in range(len(expected))]
    return all(map(torch.equal, found, expected)) and all(map(torch.equal, watched, expected))


def main() -> None:
    with Rank.start(init="torch") as rank:
        world, hybrid = (rank.world_size,), (2, rank.world_size // 2)

        def case(name: str, **facts: Any) -> None:
            rank.fact(case=name, **facts)

        case("gradients", equal=compare_gradients(rank))
        digests = [rank.digest(build_sharded(shape).state_dict()).hex for shape in (world, hybrid)]
        case("digest", equal={*digests} == {rank.digest(build().state_dict()).hex})
        for shape in (world, hybrid):
            without = train(rank, build_sharded(shape), proven=False)
            case("healthy", mesh=len(shape))
            proven = train(rank, build_sharded(shape), proven=True)
            case("left as it was", equal=without == proven)
        case("bf16")
        train(rank, build_sharded(world, torch.bfloat16), True, precision="bf16")

        def stop_sync(model: Any, index: int) -> None:
            model.set_requires_gradient_sync(index != STEPS - 1)

        case("without reduction")
        train(rank, build_sharded(world), True, stop_sync)

        def shift_replica(model: Any, index: int) -> None:
            if rank.rank == rank.world_size - 1 and index == STEPS - 1:
                next(model.parameters()).data.to_local().add_(1e-3)

        case("drifted replica")
        train(rank, build_sharded(hybrid), True, shift_replica)

        unreduced = build_sharded(world)
        unreduced.set_requires_gradient_sync(False)
        for name, model in (("verified", build_sharded(hybrid)), ("verified unreduced", unreduced)):
            case(name)
            case(f"{name}: result", synced=verify(rank, model.eval()))

        passes = itertools.count()

        def spoil(model: Any, index: int) -> None:
            if rank.rank == 1 and index == STEPS - 1:
                model[0].register_forward_pre_hook(lambda _, given: (given[0] + next(passes),))

        case("wrong pass")
        train(rank, build_sharded(world), True, spoil)


if __name__ == "__main__":
    main()
