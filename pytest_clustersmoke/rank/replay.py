"""Repeats a rank's own pass of a training step from the same state, and compares it bit by bit.

A device that computes wrongly now and then disagrees with itself; where two runs of the same
kernels on the same inputs differ, no majority is needed to say which device it was. The engine's
own pass is the first of the two: hooks take a fingerprint of each gradient as autograd produces it,
before any reduction. The second pass runs the bare model through `torch.autograd.grad`, so that no
hook of DDP or DeepSpeed fires and the engine's gradients stay as they are.
"""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evidence.telemetry import UNNAMED_KERNELS
from .leaves import Leaves, waits_in_forward

if TYPE_CHECKING:
    import torch

    # The losses of a step's micro batches, on this rank.
    LocalLosses = Callable[[], "torch.Tensor | Iterable[torch.Tensor]"]
MOST_NAMES = 10
# torch's warning for a kernel that may add in any order.
NOT_DETERMINISTIC = "does not have a deterministic implementation|non-deterministic"
# A device that is wrong now and then seldom gives equal passes so many times.
DETERMINISTIC_PASSES = 6
NAMING_PASSES = 2  # of these: enough to compare where torch names a kernel
# At most so many passes are compared to see that kernels add in any order.
ORDINARY_PASSES = 6
# What torch and DeepSpeed raise if activations are recomputed by reentrant checkpointing, and the
# node of the graph that would have recomputed them.
REENTRANT = re.compile(r"checkpoint\w* is (in|not )compatible with \.grad\(\)", re.IGNORECASE)
REENTRANT_NODE = "CheckpointFunctionBackward"


class Unrepeatable(Exception):
    """A pass that no second one can repeat; says why."""


def differentiate(
    loss: torch.Tensor, parameters: Sequence[torch.nn.Parameter]
) -> Sequence[torch.Tensor | None]:
    """The gradients of a loss, None for a parameter that takes no part. No hook of an engine runs,
    and the engine's gradients stay as they are.

    Raises Unrepeatable if the model recomputes activations by reentrant checkpointing: its
    parameters are then no part of the graph, and torch raises an error or leaves them out.
    """
    import torch

    reason = "reentrant checkpointing cannot be replayed (use_reentrant=False can)"
    try:
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    except RuntimeError as error:
        if REENTRANT.search(str(error)):
            raise Unrepeatable(reason) from error
        raise
    if any(part is None for part in gradients) and _is_reentrant(loss):
        raise Unrepeatable(reason)
    return gradients


def _is_reentrant(loss: torch.Tensor) -> bool:
    """Whether a node of the loss's graph recomputes activations."""
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if node.name() == REENTRANT_NODE:
            return True
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
    return False


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over the tensor's bits as 64-bit integers, on its device; it wraps around.

    Any single element that differs changes it; elements that changed places do not. It depends on
    the values and their number alone, not on where a view begins in its storage.
    """
    import torch

    flat = dense(tensor.detach()).contiguous().view(-1)
    size = flat.element_size()
    if flat.numel() * size % 8 == 0:
        aligned = flat if flat.storage_offset() * size % 8 == 0 else flat.clone()
        return aligned.view(torch.int64).sum()
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return flat.view(integers[size]).sum(dtype=torch.int64)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a dense one in place of a sparse one, as of an embedding."""
    import torch

    return tensor if tensor.layout is torch.strided else tensor.to_dense()


class PrintSums:
    """The fingerprint of each parameter's gradient, summed over micro batches. A gradient takes one
    kernel, and nothing waits for it."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._device = parameters[0].device
        self._sums: list[torch.Tensor | None] = [None] * len(parameters)

    def add(self, index: int, gradient: torch.Tensor) -> None:
        added = fingerprint(gradient).to(self._device)
        so_far = self._sums[index]
        self._sums[index] = added if so_far is None else so_far.add_(added)

    def stack(self) -> torch.Tensor:
        """One number for each parameter, on the device; 0 for those without a gradient."""
        import torch

        none = torch.zeros((), dtype=torch.int64, device=self._device)
        return torch.stack([none if each is None else each for each in self._sums])


class Replay:
    """Passes of one step by the bare model, from the random state of the engine's pass and from
    these values of buffers, which that pass may have changed.

    Buffers, such as the running mean of a batch norm, and the random state are as before at the
    end. Each pass raises Unrepeatable where `differentiate` does; `progress` is called
    after it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        local_losses: LocalLosses,
        randomness: Randomness,
        progress: Callable[[], None] = lambda: None,
        buffers: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._local_losses = local_losses
        self._randomness = randomness
        self._progress = progress
        self._buffers = buffers

    def gradients(self) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        """The local gradients of the step, summed over its micro batches (None for a parameter that
        takes no part), and their fingerprints, which may not be computed yet: the caller waits for
        them, and calls `progress`."""
        total: list[torch.Tensor | None] = [None] * len(self._parameters)

        def add(index: int, part: torch.Tensor) -> None:
            so_far = total[index]
            total[index] = part if so_far is None else so_far + part

        return total, self._sum_prints(add)

    def prints(self) -> list[int]:
        """The fingerprint of each parameter's local gradient, summed over the micro batches."""
        prints: list[int] = self._sum_prints(lambda *_: None).tolist()
        self._progress()
        return prints

    def _sum_prints(self, use: Callable[[int, torch.Tensor], None]) -> torch.Tensor:
        """The same on the device; `use(index, gradient)` gets the gradients as they come."""
        sums = PrintSums(self._parameters)
        with self.as_before():
            for loss in self.losses():
                for index, part in enumerate(self.differentiate(loss)):
                    if part is not None:
                        sums.add(index, part)
                        use(index, part)
        return sums.stack()

    def find_differences(self, engine: list[int], own: list[int]) -> tuple[list[int], list[str]]:
        """The parameters whose gradients differ in two passes, and the kernels that may add in any
        order, if that is why; `[UNNAMED_KERNELS]` if some seem to.

        If a kernel of the model is not deterministic, the engine's pass cannot be compared with
        another one; then two passes with deterministic kernels are compared instead.
        """
        differing = _differing(engine, own)
        if not must_repeat(bool(differing), self._model):
            return [], []
        passes, kernels = self._repeat_deterministically()
        if not differing:  # it only took part in the passes of another rank
            return [], []
        if kernels:
            return _differing(passes[0], passes[1]), kernels
        return differing, [UNNAMED_KERNELS] if passes.count(passes[0]) == len(passes) else []

    def find_kernels(self) -> list[str]:
        """The kernels that may add in any order; `[UNNAMED_KERNELS]` if some seem to."""
        differing = self._differ_in_some_pass()
        passes, kernels = self._repeat_deterministically()
        settled = passes.count(passes[0]) == len(passes)
        return kernels or ([UNNAMED_KERNELS] if differing and settled else [])

    def _differ_in_some_pass(self) -> bool:
        """Whether ordinary passes differ: they are repeated until one does, on all ranks."""
        first, differs = self.prints(), False
        for _ in range(ORDINARY_PASSES - 1):
            differs = self.prints() != first or differs
            if not must_repeat(not differs, self._model):
                break
        return differs

    def _repeat_deterministically(self) -> tuple[list[list[int]], list[str]]:
        """The fingerprints of some passes with deterministic kernels, and the kernels that are
        not. Without a name for these, it takes many equal passes to show that there are some."""
        with deterministic_kernels() as kernels:
            passes = [self.prints() for _ in range(NAMING_PASSES)]
        if must_repeat(not kernels, self._model):
            with deterministic_kernels():
                passes += [self.prints() for _ in range(DETERMINISTIC_PASSES - NAMING_PASSES)]
        return passes, kernels

    def differentiate(self, loss: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """The local gradients of one of `losses`, within `as_before`."""
        gradients = differentiate(loss, self._leaves.tensors)
        return [None if part is None else dense(part) for part in gradients]

    def losses(self) -> Iterator[torch.Tensor]:
        losses = self._local_losses()
        yield from [losses] if hasattr(losses, "backward") else losses  # type: ignore[misc]

    @contextmanager
    def as_before(self) -> Iterator[None]:
        now = Randomness()
        buffers = copy_buffers(self._model)
        _set_buffers(self._buffers)
        self._randomness.restore()
        self._leaves = Leaves(self._model, self._parameters)
        try:
            yield
        finally:
            self._leaves.close()
            now.restore()
            _set_buffers(buffers)


def copy_buffers(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each buffer of a model, with a copy of its values."""
    return [(buffer, buffer.detach().clone()) for buffer in model.buffers()]


def _set_buffers(values: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, value in values:
        buffer.data.copy_(value)


def must_repeat(differs: bool, model: torch.nn.Module) -> bool:
    """Whether to repeat a pass that differs, or does not, on this rank. If its forward pass waits
    for other ranks, all of them repeat it as soon as one must, so all call this."""
    import torch
    import torch.distributed as dist

    if not waits_in_forward(model):
        return differs
    flag = torch.tensor(int(differs), device=next(model.parameters()).device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def _differing(first: Sequence[int], second: Sequence[int]) -> list[int]:
    pairs = zip(first, second, strict=True)
    return [index for index, (left, right) in enumerate(pairs) if left != right]


@contextmanager
def deterministic_kernels() -> Iterator[list[str]]:
    """Use kernels that add in a fixed order. At the end, the list has torch's warnings about those
    that know none, one line each."""
    import torch

    kernels: list[str] = []
    mode, warns_always = torch.get_deterministic_debug_mode(), torch.is_warn_always_enabled()
    # `use_deterministic_algorithms` of newer versions would also change what is compiled later.
    torch.set_deterministic_debug_mode("warn")
    torch.set_warn_always(True)  # attention kernels otherwise warn once in a process
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield kernels
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.set_warn_always(warns_always)
    texts = [str(warning.message).splitlines()[0][:200] for warning in caught]
    kernels += sorted({text for text in texts if re.search(NOT_DETERMINISTIC, text)})[:MOST_NAMES]


class Randomness:
    """The state of the random generators of torch, Python and numpy, when this was made."""

    def __init__(self) -> None:
        import torch

        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        self._python = random.getstate()
        self._numpy = _numpy_random().get_state() if _numpy_random() else None

    def restore(self) -> None:
        import torch

        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            import numpy.random  # another rank's state may come here first

            numpy.random.set_state(self._numpy)

    def save(self, path: Path) -> None:
        """Write the state to a file that `load` reads in another process."""
        import torch

        numpy = self._numpy and [v.tolist() if hasattr(v, "tolist") else v for v in self._numpy]
        values = {"cpu": self._cpu, "cuda": self._cuda, "python": self._python, "numpy": numpy}
        torch.save(values, path)

    @classmethod
    def load(cls, path: Path) -> Randomness:
        """The state in a file; unpickles nothing but tensors and plain values."""
        import torch

        values = torch.load(path, weights_only=True)
        state = cls()
        state._cpu, state._cuda = values["cpu"], values["cuda"]
        state._python, numpy = values["python"], values["numpy"]
        state._numpy = numpy and tuple(numpy)
        return state


def _numpy_random() -> Any:
    """numpy's generators, if the program uses numpy."""
    return sys.modules.get("numpy.random")
