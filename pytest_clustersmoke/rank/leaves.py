"""The tensors by which a pass is differentiated: parameters, or what FSDP2 puts in their place.

`fully_shard` makes each parameter a DTensor, of which a rank holds a part. For each forward pass of
a unit it gathers whole tensors and puts them in the module in place of the parts. Autograd computes
the local gradients of these whole tensors; hooks of the parts never fire. FSDP2 keeps the whole
tensors from step to step, and only frees their memory.

DeepSpeed's ZeRO-3 gathers, too, but into the parameters themselves: they are the leaves. Between
passes all but the smallest are empty. What a rank holds is `ds_tensor`; if it is offloaded to a
disk (NVMe), DeepSpeed puts one number without a meaning in its place.

FSDP1 (`FullyShardedDataParallel`) joins the parameters of a unit to a flat one, of which a rank
holds a part. Its parts are not repeated.

Megatron's tensor parallelism gathers nothing: each rank computes with its part of a parameter, and
they add up the results. Parts and their gradients are ordinary tensors, with marks of Megatron's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from .rank_environment import RankMisuse

# The index of a parameter, and its local gradient.
Watcher = Callable[[int, Any], None]


@dataclass(frozen=True)
class Groups:
    """The process groups, with this rank in them, of a model that is split over ranks.

    The ranks of `model` share each batch, and each holds its own part of the model; those of `data`
    hold the same part, and each has its own data. Every rank is in one group of each kind, and the
    sizes multiply to the world size. Under context parallelism `sequence_parts` ranks of `data`
    have parts of the same sequences.
    """

    model: Any
    data: Any
    sequence_parts: int = 1

    def __post_init__(self) -> None:
        import torch.distributed as dist

        sizes, ranks = (self.model.size(), self.data.size()), dist.get_world_size()
        if sizes[0] * sizes[1] != ranks:
            raise RankMisuse(
                f"groups of {sizes[0]} ranks (model) and {sizes[1]} (data); expected sizes that "
                f"multiply to {ranks}, the world size"
            )

    @property
    def replicas(self) -> int:
        """How many batches the ranks train on together."""
        return int(self.data.size()) // self.sequence_parts


def is_partial(parameter: Any) -> bool:
    """Whether local gradients are to be added up over the ranks of a model: under Megatron's
    sequence parallelism each rank has a part of the sequence."""
    return bool(getattr(parameter, "sequence_parallel", False))


def is_linear(module: Any) -> bool:
    """Whether it is a linear layer; Megatron's, and Transformer Engine's for it, are known by their
    names."""
    import torch

    return isinstance(module, torch.nn.Linear) or type(module).__name__.endswith("ParallelLinear")


def find_adapters(model: Any) -> set[str]:
    """The names of the modules that stand beside a `base_layer`, as peft's adapters do."""
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, wrapper in model.named_modules()
        if "base_layer" in dict(wrapper.named_children())
        for name, _ in wrapper.named_modules()
        if name and name.split(".")[0] != "base_layer"
    }


def _is_tensor_parallel(module: Any) -> bool:
    group = getattr(module, "tp_group", None)
    return group is not None and group.size() > 1


def is_sharded(tensor: Any) -> bool:
    """Whether this rank holds a part of it: a DTensor, or a parameter under ZeRO-3."""
    return _is_dtensor(tensor) or _is_zero3(tensor)


def _is_dtensor(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def _is_zero3(tensor: Any) -> bool:
    return hasattr(tensor, "ds_tensor")


def is_flattened(tensor: Any) -> bool:
    """Whether FSDP1 has joined it to others: this rank holds a part of them."""
    return bool(getattr(tensor, "_fsdp_flattened", False))


def find_on_disk(parameters: Iterable[Any]) -> str:
    """Why what a rank holds of a parameter cannot be read, the same on all ranks; empty if it can.

    By the settings, and not by what is in memory just now: prefetching differs between ranks.
    """
    if any(getattr(parameter, "nvme_swapper", None) is not None for parameter in parameters):
        return "parameters are offloaded to a disk (NVMe), where DeepSpeed alone can read them"
    return ""


def is_partitioned(parameters: Iterable[Any]) -> bool:
    """Whether no two ranks hold the same part of them, as under ZeRO-3 and FSDP1."""
    return any(_is_zero3(parameter) or is_flattened(parameter) for parameter in parameters)


def whole_shape(parameter: Any) -> Any:
    """The shape of the whole parameter, which is also that of its local gradient."""
    return parameter.ds_shape if _is_zero3(parameter) else parameter.shape


def shares_statistics(model: Any) -> bool:
    """Whether batch norms average over the ranks: what one rank computes then depends on all. They
    are known by their name, since apex and programs for CPUs have classes of their own."""
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    return any("SyncBatchNorm" in kind for kind in kinds)


def shares_sums(model: Any) -> bool:
    """Whether one rank's error in a pass reaches others, which must give the same bits again. A sum
    of tensor parallel ranks does if NVLink SHARP is off, which adds in another order each time."""
    if shares_statistics(model):
        return True
    on_gpus = any(parameter.is_cuda for parameter in model.parameters())
    has_order = not on_gpus or os.environ.get("NCCL_NVLS_ENABLE") == "0"
    return has_order and any(map(_is_tensor_parallel, model.modules()))


def gathers_parameters(model: Any) -> bool:
    """Whether the forward pass gathers parameters from other ranks."""
    return any(map(is_sharded, model.parameters()))


def waits_in_forward(model: Any) -> str:
    """Why the model's forward pass waits for other ranks; empty if it does not."""
    if gathers_parameters(model):
        return "the forward pass gathers parameters from other ranks"
    return waits_in_blocks(model)


def waits_in_blocks(model: Any) -> str:
    """The same of a pass with whole parameters."""
    if shares_statistics(model):
        return "the forward pass averages the statistics of batch norms over the ranks"
    if any(map(_is_tensor_parallel, model.modules())):
        return "the forward pass adds up what tensor parallel ranks compute"
    return ""


def gather_whole(tensor: Any) -> Any:
    """The whole tensor; of a DTensor all ranks must call this, since it is gathered. Of a parameter
    under ZeRO-3 the part that this rank holds."""
    if _is_zero3(tensor):
        return tensor.ds_tensor
    return tensor.full_tensor() if _is_dtensor(tensor) else tensor


def copy_whole(parameters: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each sharded parameter with a copy of the whole. All ranks must exhaust this."""
    for parameter in parameters:
        if _is_zero3(parameter):
            yield parameter, _join_partitions(parameter)
        else:
            yield parameter, gather_whole(parameter.detach()).clone()


def _join_partitions(parameter: Any) -> Any:
    """The whole parameter under ZeRO-3, from what the ranks hold.

    DeepSpeed's GatheredParameters cannot be used after a forward pass without a backward pass: it
    fails on a parameter that DeepSpeed is fetching ahead.
    """
    import torch
    import torch.distributed as dist

    own = parameter.ds_tensor.detach().to(parameter.device)  # from the host, if it is offloaded
    parts = [torch.empty_like(own) for _ in range(parameter.ds_process_group.size())]
    dist.all_gather(parts, own, group=parameter.ds_process_group)
    return torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape)


def local_part(tensor: Any) -> Any:
    """The part of a sharded tensor that this rank holds; any other tensor as it is."""
    if _is_zero3(tensor):
        return tensor.ds_tensor
    return tensor.to_local() if _is_dtensor(tensor) else tensor


def find_part(tensor: Any, groups: Groups | None = None) -> tuple[int, ...]:
    """Which part of a sharded tensor this rank holds: its place in the dimensions of the mesh over
    which the tensor is split, or in the group of the model, where Megatron splits it. Ranks with
    equal places hold replicas; () if it is not split."""
    if groups is not None and getattr(tensor, "tensor_model_parallel", False):
        return (groups.model.rank(),)
    if _is_zero3(tensor) or is_flattened(tensor):
        import torch.distributed as dist

        return (dist.get_rank(),)
    if not _is_dtensor(tensor):
        return ()
    places = zip(tensor.device_mesh.get_coordinate(), tensor.placements, strict=True)
    return tuple(place for place, placement in places if not placement.is_replicate())


def free_whole(model: Any) -> None:
    """Let FSDP2 put the sharded parameters back in place: after a forward pass without a backward
    pass, units may keep the whole ones, whose memory the next backward pass frees."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


class Leaves:
    """The leaves of a model's passes, in the order of `parameters`.

    Under FSDP2 `tensors` has them once a pass has begun. `close` removes all hooks.
    """

    def __init__(self, model: Any, parameters: Iterable[Any]) -> None:
        """`model` is only needed if parameters are sharded; raises RankMisuse if it is missing."""
        self.tensors = list(parameters)
        self._watchers: list[Watcher] = []
        self._handles: list[Any] = []
        indices = {id(p): index for index, p in enumerate(self.tensors) if _is_dtensor(p)}
        if indices and model is None:
            raise RankMisuse("the parameters are sharded; expected the model, which gathers them")
        self._sharded: dict[str, int] = {}
        if indices:
            named = ((name, indices.get(id(p))) for name, p in model.named_parameters())
            self._sharded = {name: index for name, index in named if index is not None}
            # These hooks come after FSDP2's own, which puts the whole tensors in place.
            self._handles += [
                module.register_forward_pre_hook(partial(self._take, prefix))
                for prefix, module in model.named_modules()
                if hasattr(module, "unshard")
            ]

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with each local gradient, before any reduction, until `close`."""
        self._watchers.append(watcher)
        for index, tensor in enumerate(self.tensors):
            if not _is_dtensor(tensor):
                self._handles.append(tensor.register_hook(partial(watcher, index)))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _take(self, prefix: str, module: Any, _inputs: Any) -> None:
        """Take the whole tensors of one unit; those of units within it come later."""
        for name, tensor in module.named_parameters(prefix=prefix):
            index = self._sharded.get(name)
            if index is None or _is_dtensor(tensor) or tensor is self.tensors[index]:
                continue
            self.tensors[index] = tensor
            self._handles += [
                tensor.register_hook(partial(watcher, index)) for watcher in self._watchers
            ]
