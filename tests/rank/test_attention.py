"""Attention in steps that are repeated; on the CPU, where its kernels always add in a fixed order,
so what is tested is when torch is asked for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_clustersmoke.rank.attention import fixed_attention

MODEL = torch.nn.Linear(1, 1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that uses a GPU; the mode is torch's own again at the end."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    yield
    torch.set_deterministic_debug_mode("default")


def modes_of_backward(result: Any, query: Any) -> dict[str, int]:
    """torch's mode while the node of attention, and that before it, run backward."""
    modes: dict[str, int] = {}
    node = result.grad_fn
    while "ScaledDotProduct" not in node.name():
        node = node.next_functions[0][0]
    for name, watched in (("attention", node), ("query", query.grad_fn)):
        watched.register_prehook(
            lambda _, name=name: modes.update({name: torch.get_deterministic_debug_mode()})
        )
    result.sum().backward()
    return modes


def attend(width: int = 8) -> tuple[Any, Any]:
    leaf = torch.ones(1, 1, 4, width, requires_grad=True)
    query = leaf * 2
    return functional.scaled_dot_product_attention(query, query, query), query


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("mode", ["default", "warn"])
def test_order_is_fixed_while_attention_runs_backward(mode: str) -> None:
    """Elsewhere kernels without a fixed order would raise an error. The mode is as before then."""
    torch.set_deterministic_debug_mode(mode)
    before = torch.get_deterministic_debug_mode()
    with fixed_attention(MODEL):
        result, query = attend()
    assert modes_of_backward(result[..., :4], query) == {"attention": 2, "query": before}
    assert torch.get_deterministic_debug_mode() == before


@pytest.mark.usefixtures("gpu")
def test_attention_is_torchs_own_again_after_the_step() -> None:
    usual = functional.scaled_dot_product_attention
    with pytest.raises(KeyError), fixed_attention(MODEL):
        raise KeyError
    assert functional.scaled_dot_product_attention is usual
    result, query = attend()
    assert modes_of_backward(result, query)["attention"] == 0


@pytest.mark.usefixtures("gpu")
def test_attention_without_a_graph_and_by_products_stays_as_it_is() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with fixed_attention(MODEL):
        with torch.no_grad():
            assert attend()[0].grad_fn is None
        with sdpa_kernel(SDPBackend.MATH):
            result, _ = attend()
    result.sum().backward()


def test_compiled_models_and_models_on_a_cpu_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = functional.scaled_dot_product_attention
    with fixed_attention(MODEL):
        assert functional.scaled_dot_product_attention is usual
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    compiled: Any = torch.nn.Sequential(torch.nn.Linear(1, 1))
    compiled[0]._orig_mod = MODEL
    with fixed_attention(compiled):
        assert functional.scaled_dot_product_attention is usual
