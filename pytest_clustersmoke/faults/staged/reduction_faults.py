"""Gradients that are not reduced over the ranks, or not averaged."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock
from weakref import WeakSet

from .staging import AT_STEP, Staging, cannot_stage, wrap_attribute


class NoSync(Staging):
    """Runs every forward pass of DistributedDataParallel under no_sync: nothing is reduced."""

    is_unsynced = True

    def opened(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        def without_sync(forward: Any) -> Any:
            def forward_unsynced(module: Any, *inputs: Any, **kwargs: Any) -> Any:
                if not self.is_unsynced:
                    return forward(module, *inputs, **kwargs)
                self.stage()
                with module.no_sync():  # DDP decides in the forward pass whether the backward syncs
                    return forward(module, *inputs, **kwargs)

            return forward_unsynced

        wrap_attribute(DistributedDataParallel, "forward", without_sync)


class NoSyncLate(NoSync):
    """The same from the third step on; the ranks save equal parameters."""

    is_unsynced = False

    def before_step(self, index: int, count: int) -> None:
        if index == min(AT_STEP, count - 1):
            self.is_unsynced = True

    def save(self, save: Callable[[], object]) -> None:
        import torch.distributed as dist

        for parameter in self.parameters:
            dist.broadcast(parameter.data, src=0)
        save()


class Summed(Staging):
    """Gives DistributedDataParallel a communication hook that adds gradients up."""

    def opened(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        hooked: WeakSet[Any] = WeakSet()

        def with_sum(forward: Any) -> Any:
            def forward_summing(module: Any, *inputs: Any, **kwargs: Any) -> Any:
                if module not in hooked:
                    self.stage()
                    hooked.add(module)
                    self._register(module)
                return forward(module, *inputs, **kwargs)

            return forward_summing

        wrap_attribute(DistributedDataParallel, "forward", with_sum)

    def _register(self, module: Any) -> None:
        import torch.distributed as dist

        def add_up(buffer: Any) -> Any:
            work: Any = dist.all_reduce(buffer, group=module.process_group, async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        try:  # a lambda, since DDP compares the annotations of a hook
            module.register_comm_hook(None, lambda state, bucket: add_up(bucket.buffer()))
        except RuntimeError as error:
            raise cannot_stage("its DistributedDataParallel has a communication hook") from error


class _FinishedWork:
    """The work handle of a skipped collective."""

    def wait(self, *_: object) -> None:
        pass


class NoSyncZero(Staging):
    """Disables DeepSpeed's reductions in the backward pass. The all-gather still makes the
    parameters equal on all ranks, so only the gradients show the fault."""

    def opened(self) -> None:
        engine: Any = importlib.import_module("deepspeed.runtime.engine")
        comm: Any = importlib.import_module("deepspeed.comm")

        def without_reduction(backward: Any) -> Any:
            def backward_unreduced(*args: Any, **kwargs: Any) -> Any:
                self.stage()
                with ExitStack() as patched:
                    for name in ("all_reduce", "reduce", "reduce_scatter_fn"):  # the last: ZeRO-3
                        skipped = mock.patch.object(comm, name, lambda *_, **__: _FinishedWork())
                        patched.enter_context(skipped)
                    return backward(*args, **kwargs)

            return backward_unreduced

        wrap_attribute(engine.DeepSpeedEngine, "backward", without_reduction)


STAGINGS: dict[str, type[Staging]] = {
    "no-gradient-sync": NoSync,
    "no-gradient-sync-late": NoSyncLate,
    "gradients-summed": Summed,
    "no-gradient-sync-zero": NoSyncZero,
}
