"""Stacks and flight-recorder entries of a rank, written on SIGUSR1 even while it hangs.

SIGTERM has the stacks written, too, on its way: torchrun, which ends the others where one rank has
died, may see the death before the node's watch asks for dumps.

The stacks come from faulthandler, whose handler runs in C and so needs no interpreter lock. The
flight recorder is read by a thread, which runs whenever the hanging call has released that lock,
as torch's collectives do. The thread sees that stacks were written by the growth of their file: a
wakeup descriptor or a handler in Python would do too, but a library in the rank may replace either.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import IO, Any

from ..rundir import PhaseDir

LOOK_EVERY_S = 0.25
# How long a failed rank may take to leave the interpreter: destructors of a process group can wait
# for peers that are gone.
LEAVE_WITHIN_S = 10


class Dumps:
    """Armed from construction to `close`."""

    def __init__(self, phase_dir: PhaseDir, rank: int) -> None:
        self._stack = phase_dir.rank_stack(rank)
        self._flight_recorder = phase_dir.rank_flight_recorder(rank)
        self._stack.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = self._stack.open("w", encoding="utf-8")
        self._closing = threading.Event()
        # What `close` falls back to: a signal that comes late must not end a rank that ends well.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True, chain=False)
        faulthandler.register(signal.SIGTERM, file=self._file, all_threads=True, chain=True)
        self._thread = threading.Thread(target=self._watch, name="clustersmoke-dumps", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disarm; a stack file that nobody asked for is removed."""
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.unregister(signal.SIGTERM)
        self._closing.set()
        self._thread.join()
        empty = os.fstat(self._file.fileno()).st_size == 0
        self._file.close()
        if empty:
            self._stack.unlink(missing_ok=True)

    def _watch(self) -> None:
        seen = 0
        while not self._closing.wait(LOOK_EVERY_S):
            size = os.fstat(self._file.fileno()).st_size
            if size > seen:
                seen = size
                # A full or vanished disk must not take the rank with it.
                with contextlib.suppress(OSError):
                    self._dump_flight_recorder()

    def _dump_flight_recorder(self) -> None:
        text = flight_recorder_json()
        if text is None:
            return
        temporary = self._flight_recorder.with_name(f".{self._flight_recorder.name}.{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        Path(temporary).replace(self._flight_recorder)


def flight_recorder_json() -> str | None:
    """This rank's flight-recorder entries as JSON; None where this torch has no recorder."""
    try:
        from torch._C import _distributed_c10d as c10d
    except ImportError:
        return None
    # The pickled form first: only it has the source lines. Its bytes come from this process.
    # `_nccl_` is the name before torch 2.6, which recorded NCCL only.
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump: Any = getattr(c10d, name, None)
        if dump is not None:
            found = pickle.loads(dump())
            # torch 2.2 gives the bare entries: none under gloo.
            record = {"entries": found} if isinstance(found, list) else found
            return json.dumps(record, default=str) if found else None
    return None


def leave_soon() -> None:
    """After a failure: end the process, status 1, if its exit handlers have not ended in time."""
    faulthandler.dump_traceback_later(LEAVE_WITHIN_S, exit=True)
