"""One block of a sharded model, whole and alone.

The passes of a sharded model gather parameters from other ranks, so they take as long as the
slowest rank. A copy of one block with whole parameters waits for nobody.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from .leaves import copy_whole, free_whole, whole_shape
from .replay import Unrepeatable, differentiate

PLAIN = (int, float, bool, str, type(None))


class LoneBlock:
    """A copy of the largest block of a model, with the inputs that it gets in a pass of this rank.

    The blocks are the entries of the model's largest ModuleList or Sequential. `scale` is how many
    times as many elements all of them have.
    """

    def __init__(self, model: Any, forward: Callable[[], object]) -> None:
        """`forward` runs the model's forward pass. All ranks must call this, since parameters are
        gathered. Raises Unrepeatable if the model has no such block."""
        import torch

        block, self.scale = _find_block(model)
        try:
            with torch.no_grad():
                arguments, named = _record_inputs(block, forward)
        finally:
            free_whole(model)
        self._arguments, self._named = arguments, named
        floating = [v for v in _flatten((arguments, named)) if v.is_floating_point()]
        if not floating:
            raise Unrepeatable("no input of the model's blocks has a gradient")
        copies = {
            id(parameter): torch.nn.Parameter(
                whole.to(floating[0].dtype) if whole.is_floating_point() else whole,
                parameter.requires_grad,
            )
            for parameter, whole in copy_whole(list(block.parameters()))
        }
        self._block = _copy_module(block, copies)
        floating[0].requires_grad_()
        self._inputs = [floating[0], *(copy for copy in copies.values() if copy.requires_grad)]

    def losses(self) -> Iterator[Any]:
        """The sum over the first tensor that the block returns."""
        yield next(_flatten(self._block(*self._arguments, **self._named))).sum()

    def differentiate(self, loss: Any) -> None:
        differentiate(loss, self._inputs)


def _find_block(model: Any) -> tuple[Any, float]:
    """The largest block, and the ratio of the elements of all blocks to its own."""
    import torch

    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    kept = [module for module in model.modules() if isinstance(module, lists)]
    blocks = max(kept, key=_count_elements, default=None)
    block: Any = blocks
    while isinstance(block, lists) and len(block):
        blocks, block = block, max(block, key=_count_elements)
    if blocks is None or block is blocks or not _count_elements(block):
        raise Unrepeatable(
            "the model has no ModuleList or Sequential with a block that could run alone"
        )
    return block, _count_elements(blocks) / _count_elements(block)


def _count_elements(module: Any) -> int:
    return sum(math.prod(whole_shape(parameter)) for parameter in module.parameters())


def _record_inputs(block: Any, forward: Callable[[], object]) -> tuple[Any, Any]:
    """Copies of what the block gets in the forward pass, in its first call."""
    recorded: list[tuple[Any, Any]] = []

    def record(_module: Any, arguments: Any, named: Any) -> None:
        if not recorded:
            recorded.append((_copy_values(arguments), _copy_values(named)))

    handle = block.register_forward_pre_hook(record, with_kwargs=True)
    try:
        forward()
    finally:
        handle.remove()
    if not recorded:
        raise Unrepeatable("the forward pass never calls the model's largest block")
    return recorded[0]


def _copy_values(values: Any) -> Any:
    """Copies of tensors, in whatever lists and mappings they are. Raises Unrepeatable if there is
    anything that a pass might change, such as a cache of keys."""
    if hasattr(values, "detach"):
        return values.detach().clone()
    if isinstance(values, dict):
        return {name: _copy_values(value) for name, value in values.items()}
    if isinstance(values, (tuple, list)):
        return type(values)(map(_copy_values, values))
    if isinstance(values, PLAIN) or type(values).__module__ == "torch":  # a dtype, a device
        return values
    raise Unrepeatable(f"the model's blocks get a {type(values).__name__}, which they may change")


def _flatten(values: Any) -> Iterator[Any]:
    """The tensors in nested values."""
    if hasattr(values, "detach"):
        yield values
    elif isinstance(values, dict):
        yield from _flatten(tuple(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _flatten(value)


def _copy_module(module: Any, parameters: dict[int, Any]) -> Any:
    """A module of the same class and settings with other parameters, and without any hook: FSDP2's
    and DeepSpeed's gather and free parameters."""
    copy = object.__new__(type(module))  # FSDP2's classes cannot be made otherwise
    copy.__dict__ = {
        name: OrderedDict() if "_hooks" in name and isinstance(value, dict) else value
        for name, value in vars(module).items()
    }
    named = vars(module)
    copy.__dict__["_parameters"] = {
        name: None if parameter is None else parameters[id(parameter)]
        for name, parameter in named["_parameters"].items()
    }
    copy.__dict__["_buffers"] = {name: _copy_values(b) for name, b in named["_buffers"].items()}
    copy.__dict__["_modules"] = {
        name: None if child is None else _copy_module(child, parameters)
        for name, child in named["_modules"].items()
    }
    return copy
