"""A fake of an NFS client's cache of missing names: a name that did not exist stays missing until
its directory is listed (nfs(5), `lookupcache=all`; expiry after half a minute is left out)."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LOOK = [(os, "stat"), (os, "open"), (io, "open"), (builtins, "open")]
LIST = [(os, "listdir"), (os, "scandir")]


class FakeNfs:
    """Every lookup of this process below a directory goes through that cache."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = str(root)
        self._missing: set[tuple[str, str]] = set()
        self._exists = os.path.lexists
        self._elsewhere = False
        for module, name in LOOK:
            monkeypatch.setattr(module, name, self._looking(getattr(module, name)))
        for module, name in LIST:
            monkeypatch.setattr(module, name, self._listing(getattr(module, name)))

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Act as another machine: this machine's cache does not see these changes."""
        self._elsewhere = True
        yield
        self._elsewhere = False

    def _looking(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *words: Any, **options: Any) -> Any:
            self._look_up(path)
            return real(path, *words, **options)

        return call

    def _listing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".") -> Any:
            self._look_up(path)
            self._missing = {entry for entry in self._missing if entry[0] != str(path)}
            return real(path)

        return call

    def _look_up(self, path: Any) -> None:
        if self._elsewhere or isinstance(path, int):
            return
        name = str(path)
        if not name.startswith(self._root + "/"):
            return
        parent = self._root
        for part in name[len(self._root) + 1 :].split("/"):
            if (parent, part) in self._missing or not self._exists(f"{parent}/{part}"):
                self._missing.add((parent, part))
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            parent += f"/{part}"
