"""Digests and checksums of state, for comparison bit for bit, and the directory and the files of a
checkpoint."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .leaves import find_on_disk, gather_whole, local_part, whole_shape
from .process_group import barrier, broadcast_object
from .rank_environment import RankEnvironment, RankMisuse

if TYPE_CHECKING:
    import torch

# A tensor is hashed piece by piece, so that a large one on a device needs little host memory.
PIECE_BYTES = 64 * 2**20
FACTOR = 0x2545F4914F6CDD1D  # odd, so that no bit of what it multiplies is lost


# A file of tensors is a series of zip archives, and ends as the last of them does: with this record
# of 22 bytes, since torch writes no comment behind it.
END_OF_ZIP, END_OF_ZIP_BYTES = b"PK\x05\x06", 22


class BadShard(RuntimeError):
    """A shard of a distributed checkpoint is missing, truncated, or from another save."""


class Digest(dict[str, str]):
    """Maps the path of each value in a nested state to its type, shape and hash."""

    tensors: int = 0
    unread: str = ""  # why a tensor could not be hashed

    @property
    def hex(self) -> str:
        """One hash of the whole state, as a fact that ranks can be compared by. The order of the
        keys of a dict does not matter."""
        return hashlib.sha256(json.dumps(self, sort_keys=True).encode()).hexdigest()


def digest(state: Any) -> Digest:
    """Hash a nested state of dicts, lists, tensors and plain values.

    A NaN equals another NaN with the same bits. DTensors are gathered one by one, so all ranks must
    call this, and the hash does not depend on how many ranks there are. Of a parameter under ZeRO-3
    this rank's part is hashed. `tensors` counts those that hold anything.
    """
    import torch

    result = Digest()
    for path, value in _walk(state, "", ()):
        if isinstance(value, torch.Tensor) and (reason := find_on_disk([value])):
            result.unread, result[path] = reason, "not read"
        elif isinstance(value, torch.Tensor):
            whole = gather_whole(value)
            result.tensors += bool(whole.numel())
            result[path] = _tensor_digest(whole)
        else:
            result[path] = f"{type(value).__name__} {value!r}"
    return result


def checksums(
    named_tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device
) -> dict[str, int]:
    """`sum_bits` of each tensor, computed on `device`."""
    import torch

    sums = {name: sum_bits(tensor.detach().to(device)) for name, tensor in named_tensors}
    values = torch.stack(list(sums.values())).tolist() if sums else []
    return dict(zip(sums, values, strict=True))


def sum_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A 64-bit sum over the bits of a tensor, on its device; it wraps around.

    Each element has its own odd factor, so the sum changes with any element, and if two swap.
    """
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
    bits = tensor.detach().flatten().view(integers[tensor.element_size()])
    factors = torch.arange(len(bits), device=tensor.device) * FACTOR | 1
    return (bits * factors).sum()


def mismatched_paths(expected: Digest, actual: Digest) -> list[str]:
    """The paths whose values differ, or that only one digest has, in order."""
    paths = dict.fromkeys([*expected, *actual])
    return [path for path in paths if expected.get(path) != actual.get(path)]


def compare_states(
    before: Any,
    expected: Digest,
    reloaded: Any,
    statistics: set[str],
    model: Any,
    optimizer: Any = None,
) -> dict[str, Any]:
    """The fields of the `reload` event: whether a reloaded state has the digest of the one `before`
    saving, and what its tensors share with that. `model`, which has these `statistics`, and
    `optimizer` are those of the proof, or None; a digest as `before` needs neither."""
    actual = digest(reloaded)
    return {
        **compare_digests(expected, actual),
        **_compare_buffers(expected, actual, statistics),
        "shared": _find_shared(before, reloaded, model, optimizer)[:10],
    }


def name_statistics(model: Any) -> set[str]:
    """The buffers of the model's batch norms: in data parallel training each rank has statistics of
    its own, and one rank's are saved."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if hasattr(module, "running_mean")
        for name, _ in module.named_buffers(recurse=False)
    }


def _compare_buffers(expected: Digest, actual: Digest, names: set[str]) -> dict[str, Any]:
    """Hashes of the buffers with these names in both states, and whether nothing else differs."""
    paths = {path for path in expected.keys() | actual.keys() if _ends_in(path, names)}
    if not paths:
        return {}
    before, after = (
        Digest({path: state[path] for path in sorted(paths & state.keys())}).hex
        for state in (expected, actual)
    )
    alone = set(mismatched_paths(expected, actual)) <= paths
    return {"buffers": before, "reloaded_buffers": after, "only_buffers_differ": alone}


def _ends_in(path: str, names: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[at:]) in names for at in range(len(parts)))


def _find_shared(before: Any, reloaded: Any, model: Any, optimizer: Any) -> list[str]:
    """The tensors of the reloaded state that lie in the memory of those that were saved: no
    checkpoint was loaded into a state of its own there.

    Not what a new model may share with the old one, its frozen parameters and its buffers; nor
    constants of the program, which have the shape of nothing that training changes and fewer
    elements than are trained (an average of the weights may be flat), beside at least that many
    loaded ones. Without a model, or an optimizer, nothing is known.
    """
    saved = set(filter(None, (_place(value) for _, value in _walk(before, "", ()))))
    tensors = {path: value for path, value in _walk(reloaded, "", ()) if _place(value)}
    shared = {path: value for path, value in tensors.items() if _place(value) in saved}
    if model is None:
        return list(shared)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    fixed = {_place(tensor) for tensor in (*frozen, *model.buffers())}
    shared = {path: value for path, value in shared.items() if _place(value) not in fixed}
    loaded = [value for value in tensors.values() if _place(value) not in saved]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    most = _count_elements(trained)
    if optimizer is None or not shared or _count_elements(loaded) < most:
        return list(shared)  # what training changes may be in any of them
    state = [optimizer.param_groups, list(optimizer.state.values())]
    kept = [value for _, value in _walk(state, "", ()) if _place(value) and value.numel() > 1]
    shapes = {shape for tensor in (*trained, *kept) for shape in _shapes(tensor)}
    return [p for p, v in shared.items() if _shapes(v) & shapes or _count_elements([v]) >= most]


def _count_elements(tensors: Iterable[Any]) -> int:
    return sum(local_part(tensor).numel() for tensor in tensors)


def _shapes(tensor: Any) -> set[tuple[int, ...]]:
    """Of the tensor, and of this rank's part of it."""
    return {tuple(whole_shape(tensor)), tuple(local_part(tensor).shape)}


def _place(value: Any) -> tuple[str, int] | None:
    """The memory of a tensor, or of this rank's part of it; None of one that has none."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    part = local_part(value)
    if part.layout is not torch.strided or not part.numel():
        return None
    return str(part.device), int(part.untyped_storage().data_ptr())


def compare_digests(expected: Digest, actual: Digest) -> dict[str, Any]:
    """The fields of an event that says whether they are equal."""
    mismatched = mismatched_paths(expected, actual)
    fields = {"equal": not mismatched, "tensors": actual.tensors, "mismatched": mismatched[:10]}
    unread = expected.unread or actual.unread
    return fields | ({"not_measured": unread} if unread else {})


class OutputDirectory:
    """The directory that a program writes to, one for all ranks: that of the phase or, if the
    program is run by hand, a temporary one between `open` and `close`."""

    def __init__(self, environment: RankEnvironment) -> None:
        self._environment = environment
        self._is_temporary = environment.phase_dir is None
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """It exists."""
        if self._path is None:
            if self._environment.phase_dir is None:
                raise RankMisuse(
                    "output_dir is not known before the process group is open: outside the "
                    "launcher the ranks agree on a temporary directory then"
                )
            self._path = self._environment.phase_dir.output
            self._path.mkdir(parents=True, exist_ok=True)
        return self._path

    def open(self) -> None:
        """Agree on a temporary one; all ranks call this once the process group is open."""
        if self._is_temporary:
            is_main = self._environment.rank == 0
            path = tempfile.mkdtemp(prefix="clustersmoke-") if is_main else ""
            self._path = Path(broadcast_object(path))
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def close(self, device: torch.device) -> None:
        if self._is_temporary and self._path is not None:
            barrier(device)  # other ranks may still read from it
            if self._environment.local_rank == 0:
                shutil.rmtree(self._path, ignore_errors=True)


def list_files(directory: Path) -> list[dict[str, Any]]:
    """All files under a directory, with their sizes in bytes, sorted by name."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [
        {"name": path.relative_to(directory).as_posix(), "bytes": path.stat().st_size}
        for path in files
    ]


def load_shards(directory: Path, load: Callable[[], Any]) -> Any:
    """What `load` returns, which reads a checkpoint below `directory`.

    Raises BadShard if `load` fails and a shard there is not what the checkpoint's metadata say:
    torch's own error then names neither the shard nor what is wrong with it.
    """
    try:
        return load()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is not an Exception
        if bad := next(_find_bad_shards(directory), None):
            raise BadShard(bad) from error
        raise


def _find_bad_shards(directory: Path) -> Iterator[str]:
    """What is wrong with each shard of the distributed checkpoints below a directory."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    for metadata in sorted(directory.rglob(".metadata")):
        sizes: dict[str, int] = {}
        try:
            for stored in FileSystemReader(metadata.parent).read_metadata().storage_data.values():
                end = stored.offset + stored.length
                sizes[stored.relative_path] = max(end, sizes.get(stored.relative_path, 0))
        except Exception:  # damaged as well: the error of `load` says so
            continue
        for name, size in sorted(sizes.items()):
            if wrong := _compare_shard(metadata.parent / name, size):
                shard = (metadata.parent / name).relative_to(directory).as_posix()
                yield f"shard {shard}, one of {len(sizes)}, {wrong}"


def _compare_shard(path: Path, size: int) -> str:
    """What is wrong with a shard that should have this size in bytes; empty if nothing is."""
    if not path.is_file():
        return f"is missing; expected {size} bytes"
    actual = path.stat().st_size
    if actual == size:
        return ""
    with path.open("rb") as stream:
        stream.seek(max(0, actual - END_OF_ZIP_BYTES))
        is_whole = stream.read().startswith(END_OF_ZIP)
    if not is_whole:
        return f"is truncated: it has {actual} bytes, expected {size}"
    return f"is a whole file of another save: it has {actual} bytes, expected {size}"


def _walk(value: Any, path: str, ancestors: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path. An object without a repr of its own is walked by its attributes."""
    import torch

    if isinstance(value, torch.Tensor | torch.dtype | torch.device | torch.Size):
        yield path, value
        return
    if id(value) in ancestors:
        yield path, "(a reference to an enclosing object)"
        return
    ancestors = (*ancestors, id(value))
    if isinstance(value, Mapping):
        yield path, f"{type(value).__name__} of {len(value)}"
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else str(key), ancestors)
    elif isinstance(value, list | tuple):
        yield path, f"{type(value).__name__} of {len(value)}"
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{index}]", ancestors)
    elif isinstance(value, set | frozenset):
        yield path, f"{type(value).__name__} {sorted(map(repr, value))}"
    elif _has_attributes(value):
        yield path, type(value).__qualname__
        for name, inner in sorted(vars(value).items()):
            yield from _walk(inner, f"{path}.{name}", ancestors)
    else:
        yield path, value


def _has_attributes(value: Any) -> bool:
    """Whether the value has the default repr, which shows an address and not the contents."""
    represent: Any = type(value).__repr__
    return represent is object.__repr__ and hasattr(value, "__dict__")


def _tensor_digest(tensor: torch.Tensor) -> str:
    import torch

    flat = tensor.detach().reshape(-1)
    hashed = hashlib.sha256()
    piece = max(1, PIECE_BYTES // max(1, flat.element_size()))
    for start in range(0, flat.numel(), piece):
        raw = flat[start : start + piece].cpu().contiguous().view(torch.uint8)
        hashed.update(raw.numpy().tobytes())
    return f"{tensor.dtype} {list(tensor.shape)} {hashed.hexdigest()}"
