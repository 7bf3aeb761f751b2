"""Delays an abort so that the rank has time to write its flight recorder.

gloo and NCCL's watchdog abort from threads of their own (on a collective whose sizes differ, or on
a timeout), and the flight recorder of that rank then shows which rank was out of step. A handler
for SIGABRT must not need Python's lock, which the main thread may hold, nor anything else that is
unsafe in a process about to end. libc's own `sleep` qualifies: as the handler it is called with the
signal's number, so the aborting thread sleeps 6 s while the others go on. faulthandler runs before
it, writes the stacks to stderr and restores this handler; that is how an abort is detected. If
Python's lock is held meanwhile, only these seconds are lost.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal

# Larger than any struct sigaction; its first member is the handler on the platforms torch runs on.
SIGACTION_BYTES = 512
STDERR = 2

try:
    _LIBC = ctypes.CDLL(None)
    _LIBC.signal.restype = ctypes.c_void_p
    _LIBC.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    _SLEEP = ctypes.cast(_LIBC.sleep, ctypes.c_void_p).value
except (AttributeError, OSError):  # no such libc
    _SLEEP = None


def arm() -> None:
    """From now on an abort waits for `finish_abort`, at most 6 s."""
    if _SLEEP is None:
        return
    faulthandler.disable()  # it restores the handler that was installed when it was enabled
    _LIBC.signal(int(signal.SIGABRT), _SLEEP)
    faulthandler.enable(file=STDERR, all_threads=True)


def disarm() -> None:
    """Make aborts immediate again."""
    if _SLEEP is None:
        return
    faulthandler.disable()
    _LIBC.signal(int(signal.SIGABRT), None)
    faulthandler.enable(file=STDERR, all_threads=True)


def aborting() -> bool:
    """Whether a thread of this process has called abort() and now sleeps."""
    # A program that disables faulthandler also restores this handler.
    return _SLEEP is not None and faulthandler.is_enabled() and _handler() == _SLEEP


def finish_abort() -> None:
    """End the process as the abort would have."""
    _LIBC.signal(int(signal.SIGABRT), None)
    os.kill(os.getpid(), signal.SIGABRT)


def _handler() -> int | None:
    action = (ctypes.c_byte * SIGACTION_BYTES)()
    _LIBC.sigaction(int(signal.SIGABRT), None, action)
    return ctypes.cast(action, ctypes.POINTER(ctypes.c_void_p)).contents.value
