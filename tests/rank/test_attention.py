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


def modes_of_backward(result: Any, query: Any, loss: Any = None) -> dict[str, int]:
    """torch's mode while the node of attention, and that before it, run backward from `loss`, or
    from the result."""
    modes: dict[str, int] = {}
    node = result.grad_fn
    while "ScaledDotProduct" not in node.name():
        node = node.next_functions[0][0]
    for name, watched in (("attention", node), ("query", query.grad_fn)):
        watched.register_prehook(
            lambda _, name=name: modes.update({name: torch.get_deterministic_debug_mode()})
        )
    (result if loss is None else loss).sum().backward()
    return modes


def attend(width: int = 8) -> tuple[Any, Any]:
    leaf = torch.ones(1, 1, 4, width, requires_grad=True)
    query = leaf * 2
    return functional.scaled_dot_product_attention(query, query, query), query


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("mode", ["default", "warn"])
def test_order_is_fixed_while_attention_runs_backward(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere kernels without a fixed order would raise an error. The mode is as before then;
    `use_deterministic_algorithms` would also set torch's compiler, and nothing would reset that."""
    monkeypatch.delattr(torch, "use_deterministic_algorithms")
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
    backends: Any = torch.backends.cuda  # torch 2.2 has no torch.nn.attention
    with fixed_attention(MODEL):
        with torch.no_grad():
            assert attend()[0].grad_fn is None
        flash = backends.flash_sdp_enabled()
        backends.enable_flash_sdp(False)
        try:
            result, _ = attend()
        finally:
            backends.enable_flash_sdp(flash)
    assert "ScaledDotProduct" not in result.grad_fn.name()
    result.sum().backward()


@pytest.mark.usefixtures("gpu")
def test_mode_is_as_before_after_attention_by_products_to_what_attention_gave() -> None:
    """The node of the first is found twice."""
    backends: Any = torch.backends.cuda
    with fixed_attention(MODEL):
        first, query = attend()
        flash = backends.flash_sdp_enabled()
        backends.enable_flash_sdp(False)
        try:
            second = functional.scaled_dot_product_attention(query, query, first)
        finally:
            backends.enable_flash_sdp(flash)
    assert modes_of_backward(first, query, second) == {"attention": 2, "query": 0}
    assert torch.get_deterministic_debug_mode() == 0


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("only_cudnn", [False, True])
def test_cudnn_is_left_out_unless_the_program_allows_no_other_kernel(
    only_cudnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises an error if it may use none."""
    seen: list[bool] = []
    backends: Any = torch.backends.cuda
    monkeypatch.setattr(backends, "cudnn_sdp_enabled", lambda: True, raising=False)
    monkeypatch.setattr(backends, "enable_cudnn_sdp", seen.append, raising=False)
    monkeypatch.setattr(backends, "math_sdp_enabled", lambda: not only_cudnn)
    with fixed_attention(MODEL):
        attend()
    assert seen == ([] if only_cudnn else [False, True])


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_compiled_function_is_compiled_once_for_all_proven_steps() -> None:
    """Its attention stays as it is, also where its graph must be whole."""
    if not hasattr(torch.compiler, "is_compiling"):
        pytest.skip("this torch does not tell whether it compiles")
    graphs = []

    def keep(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    attend_compiled = torch.compile(
        lambda query: functional.scaled_dot_product_attention(query, query, query) * 2,
        fullgraph=True,
        backend=keep,
    )
    query = torch.ones(1, 1, 4, 8, requires_grad=True)
    for _ in range(12):
        attend_compiled(query)
        with fixed_attention(MODEL):
            attend_compiled(query).sum().backward()
    assert len(graphs) <= 2
    assert torch.get_deterministic_debug_mode() == 0


def test_compiled_models_and_models_on_a_cpu_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = functional.scaled_dot_product_attention
    with fixed_attention(MODEL):
        assert functional.scaled_dot_product_attention is usual
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("_orig_mod", "_compiled_call_impl"):  # as `Module.compile` leaves it
        compiled: Any = torch.nn.Sequential(torch.nn.Linear(1, 1))
        setattr(compiled[0], name, MODEL.forward)
        with fixed_attention(compiled):
            assert functional.scaled_dot_product_attention is usual
