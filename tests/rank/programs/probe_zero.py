"""The gradient probe under ZeRO: healthy, then with reductions removed, then with sums for means.

It also reloads a checkpoint without the optimizer's state.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from pytest_clustersmoke.rank import Rank

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1e-3,  # far below any norm here: it must not affect the probe
}


@contextmanager
def reductions(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Wrap DeepSpeed's own reductions while its backward runs."""
    import deepspeed.comm as comm

    with (
        mock.patch.object(comm, "all_reduce", wrap(comm.all_reduce)),
        mock.patch.object(comm, "reduce", wrap(comm.reduce)),
    ):
        yield


def left_out(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: None


def ends_at_once(rank: Rank) -> bool:
    """Whether a large gather over DeepSpeed has ended, and rightly, once the caller has its
    handle."""
    import deepspeed.comm as comm

    own = torch.full((2**22,), float(rank.rank))
    whole = torch.full((rank.world_size, len(own)), -1.0)
    work = comm.all_gather_into_tensor(whole.view(-1), own, async_op=True)
    ended = work.is_completed()
    expected = torch.arange(float(rank.world_size)).unsqueeze(1)
    right = bool((whole == expected).all())
    work.wait()
    return ended and right


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, required=True)
    stage = parser.parse_args().stage
    with Rank.start(init="deepspeed") as rank:
        import deepspeed
        from deepspeed.utils import safe_get_full_grad

        zero = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
        config = CONFIG | {"zero_optimization": zero}

        def build(seed: int) -> Any:
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
            return deepspeed.initialize(
                model=model,
                model_parameters=model.parameters(),
                config=copy.deepcopy(config),  # DeepSpeed 0.14 removes torch_adam from it
            )[0]

        engine = build(0)
        torch.manual_seed(1 + rank.rank)
        inputs, targets = torch.randn(8, 16).bfloat16(), torch.randn(8, 4)

        def loss_of(network: Any) -> torch.Tensor:
            return nn.functional.mse_loss(network(inputs).float(), targets)

        def summing(reduce: Callable[..., Any]) -> Callable[..., Any]:
            def summed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                tensor.mul_(rank.world_size)
                return reduce(tensor, *args, **kwargs)

            return summed

        for fault, wrap in {"none": None, "removed": left_out, "summed": summing}.items():

            def backward(wrap: Any = wrap) -> None:
                loss = loss_of(engine)
                if wrap is None:
                    engine.backward(loss)
                else:
                    with reductions(wrap):
                        engine.backward(loss)

            synced = rank.verify_gradients(
                engine.module.named_parameters(),
                local_loss=lambda: loss_of(engine.module),
                backward=backward,
                applied=safe_get_full_grad,
                precision="bf16",
            )
            rank.fact(fault=fault, synced=synced)
            engine.step()

        def state_of(trained: Any) -> dict[str, Any]:
            return {
                "module": trained.module.state_dict(),
                "optimizer": trained.optimizer.state_dict(),
            }

        def reload_without_optimizer() -> dict[str, Any]:
            fresh = build(1)
            fresh.load_checkpoint(str(rank.output_dir), load_optimizer_states=False)
            return state_of(fresh)

        rank.fact(
            loaded_compiler="torch._inductor.compile_fx" in sys.modules,
            gather_ends_at_once=ends_at_once(rank),
        )
        rank.save_checkpoint(lambda: engine.save_checkpoint(str(rank.output_dir)))
        rank.verify_reload(state_of(engine), reload_without_optimizer)


if __name__ == "__main__":
    main()
