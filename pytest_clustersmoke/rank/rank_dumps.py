"""Writes a rank's stacks and flight-recorder entries on SIGUSR2, even while the rank hangs.

Not on SIGUSR1: by that Slurm asks every process of a phase that resumes to stop. A healthy rank
would import torch's compiler in the thread, for the source lines, while it may do so in its program
as well; Python then gives one of them half a module.

SIGTERM also writes the stacks before it ends the rank: when one rank has died, torchrun may end
the others before the node's watch asks for dumps. A rank that raises or aborts writes its flight
recorder before it exits.

The stacks come from faulthandler, whose handler runs in C and needs no interpreter lock. A thread
reads the flight recorder; it runs whenever the hanging call has released that lock, as torch's
collectives do. The thread detects a request by the growth of the stack file. A wakeup descriptor or
a handler in Python would also work, but a library in the rank may replace either.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from ..evidence.run_directory import PhaseDir
from . import abort_delay
from .rank_events import RankEventWriter
from .recorder_dump import flight_recorder_json

POLL_EVERY_S = 0.25
# How long a failed rank may take to exit: destructors of a process group can wait for peers that
# are gone.
EXIT_WITHIN_S = 10
# How long a rank that raised waits for its own flight recorder. The calls take milliseconds; their
# source lines, for which torch first imports its compiler, take one to three seconds.
CALLS_WITHIN_S = 2.0
LINES_WITHIN_S = 4.0
# faulthandler prints for some milliseconds after the abort is detected.
STACKS_PRINTED_S = 0.2
PR_SET_PTRACER = 0x59616D61  # linux/prctl.h
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


class RankDumps:
    """Armed from construction to `close`."""

    def __init__(self, phase_dir: PhaseDir, rank: int) -> None:
        self._stack = phase_dir.rank_stack(rank)
        self._flight_recorder = phase_dir.rank_flight_recorder(rank)
        self._brief = phase_dir.rank_flight_recorder_brief(rank)
        self._stack.parent.mkdir(parents=True, exist_ok=True)
        # This process, its forked children (faulthandler) and the node's watch append to it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._stack, flags, 0o600)
        self._closing = threading.Event()
        self._wanted, self._calls, self._lines = (threading.Event() for _ in range(3))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # The handler after `close`: a late signal must not end a rank that finishes cleanly.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR2, file=self._file, all_threads=True, chain=False)
        faulthandler.register(signal.SIGTERM, file=self._file, all_threads=True, chain=True)
        abort_delay.arm()
        _allow_debuggers()
        self._thread = threading.Thread(target=self._watch, name="clustersmoke-dumps", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disarm, and remove the stack file if it is empty."""
        abort_delay.disarm()
        faulthandler.unregister(signal.SIGUSR2)
        faulthandler.unregister(signal.SIGTERM)
        self._closing.set()
        self._wanted.set()
        self._thread.join()
        empty = os.fstat(self._file).st_size == 0
        os.close(self._file)
        if empty:
            self._stack.unlink(missing_ok=True)

    def request(self) -> None:
        """Request this rank's flight recorder; returns once the calls are written."""
        self._wanted.set()
        self._calls.wait(CALLS_WITHIN_S)

    def wait_for_lines(self) -> None:
        """Wait until the requested calls are written with their source lines."""
        self._lines.wait(LINES_WITHIN_S)

    def _watch(self) -> None:
        last_size = 0
        while True:
            requested = self._wanted.wait(POLL_EVERY_S)
            if self._closing.is_set():
                return
            self._wanted.clear()
            size = os.fstat(self._file).st_size
            aborting = abort_delay.aborting()
            if requested or aborting or size > last_size:
                last_size = size
                self._dump_flight_recorder()
            if aborting:
                self._closing.wait(STACKS_PRINTED_S)
                abort_delay.finish_abort()

    def _dump_flight_recorder(self) -> None:
        """Write the calls at once; then replace them by the calls with their source lines."""
        for path, lines, written in (
            (self._brief, False, self._calls),
            (self._flight_recorder, True, self._lines),
        ):
            # Neither a full disk nor a torch that is being torn down may end the rank.
            with contextlib.suppress(Exception):
                _write_whole(path, flight_recorder_json(lines))
            written.set()
        if self._flight_recorder.exists():
            self._brief.unlink(missing_ok=True)


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _allow_debuggers() -> None:
    """Allow py-spy on the node to inspect this process.

    With Yama's ptrace_scope 1 only a parent may inspect a process, and py-spy is not the rank's
    parent; this allows all processes of the user.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)


def record_failure(error: BaseException, events: RankEventWriter, dumps: RankDumps | None) -> None:
    """Record the exception that ends the rank, with its flight recorder if it has `dumps`."""
    # Before the error event, on which the node's watch ends the phase: where ranks were out of
    # step, the flight recorder of the rank that raised is needed to say which.
    if dumps is not None:
        dumps.request()
    events.event(
        "error",
        type=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
    )
    events.close()
    if dumps is not None:
        dumps.wait_for_lines()
    # Registered last, so it runs first: from here on the interpreter's exit takes bounded time.
    atexit.register(_limit_exit_time)


def _limit_exit_time() -> None:
    """After a failure, end the process with status 1 if its exit handlers take too long."""
    faulthandler.dump_traceback_later(EXIT_WITHIN_S, exit=True)
