"""A model that FSDP2 shards: facts of its units and of its types, its state, its checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shards

LAYER = re.compile(r"\.layers\.(\d+)\.")
Types = dict[str, list[str]]  # of adapters, of the base


def describe_units(model: Any) -> dict[str, Any]:
    """Facts of the units, the shards and their types, as the sharded model itself shows them."""
    units = find_units(model)
    innermost = {id(p): unit for unit in units for p in unit.parameters()}  # it comes last
    named = dict(model.named_parameters())
    total = sum(p.numel() for p in named.values())
    sizes: dict[int, int] = defaultdict(int)
    layers: dict[str, int] = defaultdict(int)  # what is in no layer is one of its own
    for name, p in named.items():
        sizes[id(innermost[id(p)])] += p.numel()
        layers[(LAYER.findall(name) or [""])[0]] += p.numel()
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    return {
        "units": len(units),
        "largest_unit_share": max(sizes.values()) / total,
        "largest_layer_share": max(layers.values()) / total,
        "held_share": sum(p.to_local().numel() for p in named.values()) / total,
        "mesh": list(next(iter(named.values())).device_mesh.mesh.shape),
        "master_dtypes": list_types(named.items()),
        "reduce_dtypes": sorted({str(g.mp_policy.reduce_dtype) for g in groups if g}),
        "buffer_dtypes": sorted({str(b.dtype) for b in model.buffers()}),
    }


def find_units(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "unshard")]


def list_types(named: Iterable[tuple[str, Any]]) -> Types:
    types: Types = {}
    for name, parameter in named:
        kind, dtype = "adapters" if ".lora_" in name else "base", str(parameter.dtype)
        types[kind] = sorted({*types.get(kind, []), dtype})
    return types


@contextmanager
def watch_forward(model: Any) -> Iterator[dict[str, Any]]:
    """Facts of a forward pass: the types in which units compute, those of the whole parameters that
    the pass puts in place, and whether units below the root keep these afterwards; then frees them.
    Before torch 2.8 the root, which holds what is in no layer, keeps them whatever it is asked."""
    types: Types = {}
    facts: dict[str, Any] = {"compute_dtypes": types}

    def note(unit: Any, *_: Any) -> None:
        whole = [(n, p) for n, p in unit.named_parameters() if not hasattr(p, "to_local")]
        for kind, seen in list_types(whole).items():
            types[kind] = sorted({*types.get(kind, []), *seen})

    units = find_units(model)
    handles = [unit.register_forward_pre_hook(note) for unit in units]
    yield facts
    for handle in handles:
        handle.remove()
    below = [p for unit in units if unit is not model for p in unit.parameters()]
    facts["whole_after_forward"] = any(type(p) is nn.Parameter for p in below)
    for unit in units:
        unit.reshard()  # the next update would not reach the parameters kept


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    weights, states = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": states}


def load(path: str, model: Any, optimizer: Any) -> dict[str, Any]:
    state = state_of(model, optimizer)
    load_shards(state, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return state_of(model, optimizer)
