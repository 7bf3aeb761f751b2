"""Observes the engine's own pass of a step: its gradients, and what the model got and computed in.

The throughput is computed from sizes that the program states; here are those that the model saw.
Nested arguments are looked into: mappings, lists, tuples, and instances of dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from .checkpoint import FACTOR, sum_bits
from .leaves import Leaves, find_adapters, is_linear, is_sharded
from .replay import MOST_NAMES, PrintSums, Randomness, copy_buffers

TOKENS = "input_ids"  # what most language models call them
PLAIN = (bool, int, float, str, type(None))  # settings, which hold no batch


class EnginePass:
    """The engine's own pass of one step, observed from before its first forward to its last
    backward: fingerprints of the local gradients, the random state and buffers that it began with,
    and what the model got."""

    def __init__(self, model: Any, parameters: Sequence[Any], batch_dim: int | None) -> None:
        self.inputs = ModelInputs(batch_dim)
        # What linear layers computed in, with the names of some of them; and adapters alone.
        self.dtypes: dict[str, list[str]] = {}
        self.adapter_dtypes: set[str] = set()
        self.randomness: Randomness | None = None
        self.buffers: list[tuple[Any, Any]] = []  # each with its values before the pass
        self._prints = PrintSums(parameters)
        self._leaves = Leaves(model, parameters)
        self._leaves.watch(self._prints.add)
        self._handles: list[Any] = [model.register_forward_pre_hook(self._enter, with_kwargs=True)]
        adapters = find_adapters(model)
        self._handles += [
            # Before the hook of an engine that converts the output.
            module.register_forward_hook(
                partial(self._note_dtype, name, name in adapters), prepend=True
            )
            for name, module in model.named_modules()
            if is_linear(module)
        ]

    def close(self) -> Any:
        """Remove the hooks; the fingerprint of each parameter's local gradient, summed over the
        micro batches, in a tensor on the device."""
        self._leaves.close()
        for handle in self._handles:
            handle.remove()
        return self._prints.stack()

    def _enter(self, module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self.randomness is None:
            self.randomness, self.buffers = Randomness(), copy_buffers(module)
        self.inputs.add(inputs, named)

    def _note_dtype(
        self, name: str, is_adapter: bool, _module: Any, _inputs: Any, output: Any
    ) -> None:
        first = output[0] if isinstance(output, tuple) else output
        dtype = str(getattr(first, "dtype", "unknown")).removeprefix("torch.")
        if is_adapter:
            self.adapter_dtypes.add(dtype)
            return
        names = self.dtypes.setdefault(dtype, [])
        if len(names) < MOST_NAMES and name not in names:
            names.append(name)


class ModelInputs:
    """What the model got in one step: call `add` with the arguments of each of its micro batches.

    `samples` is None if no argument shows the size of a batch, `tokens` if none is a tensor of
    integers; padding counts. `batch` is a number of 64 bits that depends on all elements of the
    tensors and on their order, None if there was no tensor; `is_whole` if there was nothing else
    that may hold data.
    """

    def __init__(self, batch_dim: int | None) -> None:
        """`batch_dim` is that of `Proof`."""
        self.samples: int | None = None
        self.tokens: int | None = None
        self._sums: list[Any] = []  # of each tensor, on its device: no pass waits for them
        self.is_whole = True
        self._batch_dim = batch_dim

    @property
    def batch(self) -> int | None:
        import torch

        if not self._sums:
            return None
        device, number = self._sums[0].device, 0
        for checksum in torch.stack([each.to(device) for each in self._sums]).tolist():
            # By place: many batches have the same tokens in another order.
            number = _wrap(number * FACTOR + checksum)
        return number

    def add(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        import torch

        values = (*inputs, *named.values())
        self._add_prints([leaf for value in values for leaf in _list_leaves(value)])
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if self._batch_dim is not None:
            sizes = [t.shape[self._batch_dim] for t in tensors if t.dim() > self._batch_dim]
            self.samples = (self.samples or 0) + sizes[0] if sizes else self.samples
        if (tokens := _count_tokens(inputs, named)) is not None:
            self.tokens = (self.tokens or 0) + tokens

    def _add_prints(self, leaves: list[Any]) -> None:
        import torch

        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and _is_plain(leaf):
                self._sums.append(sum_bits(leaf))
            elif not isinstance(leaf, PLAIN):
                self.is_whole = False


@contextmanager
def watch_inputs(model: Any, batch_dim: int | None) -> Iterator[ModelInputs]:
    """What the model gets within the block, in all of its passes."""
    inputs = ModelInputs(batch_dim)
    handle = model.register_forward_pre_hook(
        lambda _module, values, named: inputs.add(values, named), with_kwargs=True
    )
    try:
        yield inputs
    finally:
        handle.remove()


def _wrap(number: int) -> int:
    """As a signed number of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _count_tokens(inputs: tuple[Any, ...], named: Mapping[str, Any]) -> int | None:
    """The size of the tensor of integers named `input_ids`, or else of the first one."""
    for value in (named.get(TOKENS), *inputs, *named.values()):
        for leaf in _list_leaves(value):
            if _has_integers(leaf):
                return int(leaf.numel())
    return None


def _has_integers(leaf: Any) -> bool:
    """Whether it is a tensor of integers with a dimension."""
    import torch

    integers = (torch.int32, torch.int64)
    return isinstance(leaf, torch.Tensor) and leaf.dtype in integers and leaf.dim() > 0


def _is_plain(tensor: Any) -> bool:
    """Whether its elements lie one after another, so that it has a checksum."""
    import torch

    lazy = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    dense = tensor.layout is torch.strided and not tensor.is_nested
    return dense and not lazy and not is_sharded(tensor)


def _list_leaves(value: Any) -> Iterator[Any]:
    """What an argument holds: tensors, and what cannot be looked into further."""
    if isinstance(value, Mapping):
        # As among keywords, the tensor with this name comes first.
        for key in sorted(value, key=lambda key: key != TOKENS):
            yield from _list_leaves(value[key])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _list_leaves(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _list_leaves(vars(value))
    else:
        yield value
