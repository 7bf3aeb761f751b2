"""Stacks and flight-recorder entries of a rank, written on SIGUSR1 even while it hangs.

SIGTERM has the stacks written, too, on its way: torchrun, which ends the others where one rank has
died, may see the death before the node's watch asks for dumps. A rank that raises or aborts writes
its flight recorder before it leaves.

The stacks come from faulthandler, whose handler runs in C and so needs no interpreter lock. The
flight recorder is read by a thread, which runs whenever the hanging call has released that lock,
as torch's collectives do. The thread sees that dumps are wanted by the growth of the stack file: a
wakeup descriptor or a handler in Python would do too, but a library in the rank may replace either.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path

from ..evidence.run_directory import PhaseDir
from . import last_words
from .recorder_dump import flight_recorder_json

LOOK_EVERY_S = 0.25
# How long a failed rank may take to leave the interpreter: destructors of a process group can wait
# for peers that are gone.
LEAVE_WITHIN_S = 10
# What a rank that raised waits for its own flight recorder: for the calls, milliseconds; for their
# source lines, which have torch import its compiler the first time, one to three seconds.
CALLS_WITHIN_S = 2.0
LINES_WITHIN_S = 4.0
# faulthandler prints for milliseconds after the abort shows.
STACKS_PRINTED_S = 0.2
PR_SET_PTRACER = 0x59616D61  # linux/prctl.h
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


class Dumps:
    """Armed from construction to `close`."""

    def __init__(self, phase_dir: PhaseDir, rank: int) -> None:
        self._stack = phase_dir.rank_stack(rank)
        self._flight_recorder = phase_dir.rank_flight_recorder(rank)
        self._brief = phase_dir.rank_flight_recorder_brief(rank)
        self._stack.parent.mkdir(parents=True, exist_ok=True)
        # Appended to by all: faulthandler here and in forked children, the node's watch.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._stack, flags, 0o600)
        self._closing = threading.Event()
        self._wanted, self._calls, self._lines = (threading.Event() for _ in range(3))
        # What `close` falls back to: a signal that comes late must not end a rank that ends well.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True, chain=False)
        faulthandler.register(signal.SIGTERM, file=self._file, all_threads=True, chain=True)
        last_words.arm()
        _let_debuggers_in()
        self._thread = threading.Thread(target=self._watch, name="clustersmoke-dumps", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disarm; a stack file that nobody asked for is removed."""
        last_words.disarm()
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.unregister(signal.SIGTERM)
        self._closing.set()
        self._wanted.set()
        self._thread.join()
        empty = os.fstat(self._file).st_size == 0
        os.close(self._file)
        if empty:
            self._stack.unlink(missing_ok=True)

    def ask(self) -> None:
        """Have this rank's flight recorder written; returns once its calls are."""
        self._wanted.set()
        self._calls.wait(CALLS_WITHIN_S)

    def finish(self) -> None:
        """Wait for the source lines of what was asked for."""
        self._lines.wait(LINES_WITHIN_S)

    def _watch(self) -> None:
        seen = 0
        while True:
            asked = self._wanted.wait(LOOK_EVERY_S)
            if self._closing.is_set():
                return
            self._wanted.clear()
            size = os.fstat(self._file).st_size
            aborting = last_words.aborting()
            if asked or aborting or size > seen:
                seen = size
                self._dump_flight_recorder()
            if aborting:
                self._closing.wait(STACKS_PRINTED_S)
                last_words.end()

    def _dump_flight_recorder(self) -> None:
        """The calls at once; then, in place of them, the calls with their source lines."""
        for path, lines, written in (
            (self._brief, False, self._calls),
            (self._flight_recorder, True, self._lines),
        ):
            # Neither a full disk nor a torch that is torn down must take the rank with it.
            with contextlib.suppress(Exception):
                _replace(path, flight_recorder_json(lines))
            written.set()
        if self._flight_recorder.exists():
            self._brief.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _let_debuggers_in() -> None:
    """Where the kernel lets only a parent look into a process (Yama's ptrace_scope 1), let this
    user's others do so, too: the node's py-spy is no parent of the rank."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)


def leave_soon() -> None:
    """After a failure: end the process, status 1, if its exit handlers have not ended in time."""
    faulthandler.dump_traceback_later(LEAVE_WITHIN_S, exit=True)
