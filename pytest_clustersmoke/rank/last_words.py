"""A rank that aborts first gets the time to write its flight recorder.

gloo and NCCL's watchdog abort from threads of their own (a collective whose sizes differ, a time
limit), and the record of that very rank then tells which rank was out of step. A handler of ours
must not need Python's lock, since the main thread may hold it, nor anything else that is unsafe in
a process that is about to end. libc's own `sleep` is such a function: as SIGABRT's handler it is
called with the signal's number, so the aborting thread sleeps 6 s, while others go on. faulthandler
comes before it, writes the stacks to stderr, and puts this handler back: that is how the abort
shows. Where Python's lock is held meanwhile, all that is lost is these seconds.
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
    """From now on an abort waits for `end`, at most 6 s."""
    if _SLEEP is None:
        return
    faulthandler.disable()  # what it puts back is what was there when it was enabled
    _LIBC.signal(int(signal.SIGABRT), _SLEEP)
    faulthandler.enable(file=STDERR, all_threads=True)


def disarm() -> None:
    """An abort is immediate again."""
    if _SLEEP is None:
        return
    faulthandler.disable()
    _LIBC.signal(int(signal.SIGABRT), None)
    faulthandler.enable(file=STDERR, all_threads=True)


def aborting() -> bool:
    """Whether a thread of this process has called abort() and sleeps now."""
    # A program that disables faulthandler brings the handler back, too.
    return _SLEEP is not None and faulthandler.is_enabled() and _handler() == _SLEEP


def end() -> None:
    """End the process as the abort would have."""
    _LIBC.signal(int(signal.SIGABRT), None)
    os.kill(os.getpid(), signal.SIGABRT)


def _handler() -> int | None:
    action = (ctypes.c_byte * SIGACTION_BYTES)()
    _LIBC.sigaction(int(signal.SIGABRT), None, action)
    return ctypes.cast(action, ctypes.POINTER(ctypes.c_void_p)).contents.value
