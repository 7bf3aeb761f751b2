"""Attention whose backward pass adds in a fixed order, for steps that are repeated.

On GPUs torch's kernels for attention add the parts of a gradient in any order, so that two healthy
passes differ in their last bits. They know a fixed order as well, but use it only under
`torch.use_deterministic_algorithms(True)`, which makes other kernels raise errors
(aten/src/ATen/native/transformers/cuda/attention_backward.cu). So that is in effect just while
their part of a backward pass runs. cuDNN's kernels do not know it on each GPU, and are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Attention = Callable[..., Any]
# The node of the graph is that of the result, or before what cuts off padding.
DEEPEST = 4
NODE = "ScaledDotProduct"
FIXED = "clustersmoke: in a fixed order"


@contextmanager
def fixed_attention(model: Any) -> Iterator[None]:
    """Let torch's `scaled_dot_product_attention` add in a fixed order in the backward passes of
    what is computed within this context.

    A compiled model stays as it is: it would be compiled again. So does attention in a compiled
    function.
    """
    import torch

    if not torch.cuda.is_initialized() or torch.version.hip or _is_compiled(model):
        yield
        return
    functional = torch.nn.functional
    usual = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _in_fixed_order(usual)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = usual


def _is_compiled(model: Any) -> bool:
    """By `torch.compile`, or in place by `Module.compile`."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


# Compiled functions would be compiled again in each step for another function.
@functools.cache
def _in_fixed_order(attention: Attention) -> Attention:
    import torch

    # torch 2.2 does not have it.
    is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)

    @functools.wraps(attention)
    def fixed(*arguments: Any, **named: Any) -> Any:
        if is_compiling():  # a compiled graph has no room for what follows
            return attention(*arguments, **named)
        with _without_cudnn():
            result = attention(*arguments, **named)
        if (node := _find_node(result.grad_fn, DEEPEST)) is not None:
            _fix_order_of(node)
        return result

    return fixed


@contextmanager
def _without_cudnn() -> Iterator[None]:
    import torch

    backends: Any = torch.backends.cuda
    enabled = hasattr(backends, "cudnn_sdp_enabled") and backends.cudnn_sdp_enabled()
    # Without products the program allows certain kernels alone: there may be no other.
    enabled = enabled and backends.math_sdp_enabled()
    if enabled:
        backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if enabled:
            backends.enable_cudnn_sdp(True)


def _find_node(node: Any, deepest: int) -> Any:
    """The node of attention next to this one; None if there is none, as where torch computes
    attention by ordinary products, which add in a fixed order."""
    if node is None or NODE in node.name():
        return node
    if not deepest:
        return None
    found = (_find_node(following, deepest - 1) for following, _ in node.next_functions)
    return next((one for one in found if one is not None), None)


def _fix_order_of(node: Any) -> None:
    """Have kernels that add in a fixed order while this node of a graph runs backward. It may be
    found again, from attention by products that follows."""
    import torch

    if FIXED in node.metadata:
        return
    node.metadata[FIXED] = True
    before: list[int] = []

    def fix(_gradients: Any) -> None:
        before.append(torch.get_deterministic_debug_mode())
        torch.set_deterministic_debug_mode("error")

    def restore(_inputs: Any, _gradients: Any) -> None:
        torch.set_deterministic_debug_mode(before.pop())

    node.register_prehook(fix)
    node.register_hook(restore)
