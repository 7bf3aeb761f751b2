"""Digests of nested state, to compare it bit for bit, and the files of a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A tensor is hashed piece by piece, so that a large one on a device needs little host memory.
PIECE_BYTES = 64 * 2**20


class Digest(dict[str, str]):
    """For every value of a nested state: its path, and its type, shape and hash."""

    tensors: int = 0


def digest(state: Any) -> Digest:
    """Hash a nested state of dicts, lists, tensors and plain values. NaN equals the same NaN."""
    import torch

    found = Digest()
    for path, value in _walk(state, "", ()):
        if isinstance(value, torch.Tensor):
            found.tensors += 1
            found[path] = _tensor_digest(value)
        else:
            found[path] = f"{type(value).__name__} {value!r}"
    return found


def mismatched(expected: Digest, found: Digest) -> list[str]:
    """The paths whose values differ, or that only one of both has, in order."""
    paths = dict.fromkeys([*expected, *found])
    return [path for path in paths if expected.get(path) != found.get(path)]


def list_files(directory: Path) -> list[dict[str, Any]]:
    """All files under a directory, with their bytes, by name."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [
        {"name": path.relative_to(directory).as_posix(), "bytes": path.stat().st_size}
        for path in files
    ]


def _walk(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path. An object of a class is walked by its attributes."""
    import torch

    if isinstance(value, torch.Tensor | torch.dtype | torch.device | torch.Size):
        yield path, value
        return
    if id(value) in above:
        yield path, "(a reference to an enclosing object)"
        return
    above = (*above, id(value))
    if isinstance(value, Mapping):
        yield path, f"{type(value).__name__} of {len(value)}"
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else str(key), above)
    elif isinstance(value, list | tuple):
        yield path, f"{type(value).__name__} of {len(value)}"
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{index}]", above)
    elif isinstance(value, set | frozenset):
        yield path, f"{type(value).__name__} {sorted(map(repr, value))}"
    elif _has_attributes(value):
        yield path, type(value).__qualname__
        for name, inner in sorted(vars(value).items()):
            yield from _walk(inner, f"{path}.{name}", above)
    else:
        yield path, value


def _has_attributes(value: Any) -> bool:
    """Whether its default repr would name an address and not what it holds."""
    words: Any = type(value).__repr__
    return words is object.__repr__ and hasattr(value, "__dict__")


def _tensor_digest(tensor: torch.Tensor) -> str:
    import torch

    flat = tensor.detach().reshape(-1)
    hashed = hashlib.sha256()
    piece = max(1, PIECE_BYTES // max(1, flat.element_size()))
    for start in range(0, flat.numel(), piece):
        raw = flat[start : start + piece].cpu().contiguous().view(torch.uint8)
        hashed.update(raw.numpy().tobytes())
    return f"{tensor.dtype} {list(tensor.shape)} {hashed.hexdigest()}"
