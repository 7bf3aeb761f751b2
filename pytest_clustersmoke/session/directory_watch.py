"""A shared directory that does not answer: two threads notice, say so, and end pytest if it was
interrupted.

A call into a file system whose server is away does not return, and no signal reaches the thread
that made it. If that is the main thread, it can neither print anything nor see Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from ..config.profile import Profile
from .interrupts import SIGNALS
from .live.board import DONE
from .live.live_view import SHARED_DIR

if TYPE_CHECKING:
    from .suite import Suite

NAME_S = 10.0  # without an answer, before it is said
LEAVE_S = 18.0  # from a signal to the end of pytest, while there is no answer: 20 s are promised
HURRY_S = 1.0  # the same from a second signal
ASK_EVERY_S = 2.0
LOOK_S = 0.2
TAKE_S = 1.0  # in this time a main thread that is alive prints what is on the board


class DirectoryWatch:
    """Watches a profile's shared directory between `start` and `stop`. Call both in the main
    thread."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.suite: Suite | None = None  # once there is one
        self._asked: tuple[float, Path] | None = None  # since when what has not answered
        # When signals were seen that a thread took, and since when one is pending that none takes.
        self._taken: list[float] = []
        self._pending: float | None = None
        self._stopped = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._wakeup_before = -1

    def start(self) -> None:
        self._terminal = os.dup(2)
        # The C half of a signal handler runs in any thread, and writes there.
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(ValueError):  # not in the main thread
            self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for name, run in (("ask", self._ask), ("look", self._look)):
            name = f"clustersmoke-directory-{name}"
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(ValueError):
                signal.set_wakeup_fd(self._wakeup_before)
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.is_set():
            run = self.suite.run if self.suite is not None else None
            for path in (self._profile.shared_dir, *([run.journal] if run is not None else [])):
                self._asked = time.monotonic(), path
                with contextlib.suppress(OSError):  # an error is an answer
                    os.statvfs(path)  # no client answers that from its cache
                    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            self._asked = None
            self._stopped.wait(ASK_EVERY_S)

    def _look(self) -> None:
        # A signal that no other thread takes is shown as pending here.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        named: tuple[float, Path] | None = None
        assert self._pipe is not None
        while not self._stopped.wait(LOOK_S):
            now, asked = time.monotonic(), self._asked
            is_hung = asked is not None and now - asked[0] > NAME_S
            if asked is not None and is_hung and named is None:
                named = asked
                self._say(f"{asked[1]} has not answered for {NAME_S:g} s: waiting for it")
            elif named is not None and named != asked:
                self._say(f"{named[1]} answers again, after {now - named[0]:.0f} s")
                named = None
            self._note_signals(self._pipe[0], now)
            if self._is_to_leave(now, is_hung):
                self._leave(asked[1] if asked else self._profile.shared_dir)
        for descriptor in (*self._pipe, self._terminal):
            os.close(descriptor)

    def _note_signals(self, wakeup: int, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            self._taken += [now for number in os.read(wakeup, 64) if number in SIGNALS]
        if not self._taken and self._has_handled():  # another plugin took the pipe's place
            self._taken.append(now)
        is_pending = bool(signal.sigpending() & {*SIGNALS})
        self._pending = (self._pending or now) if is_pending else None

    def _is_to_leave(self, now: float, is_hung: bool) -> bool:
        seen = [*self._taken, *([self._pending] if self._pending else [])]
        if not seen or not (is_hung or self._pending or not self._has_handled()):
            return False  # the main thread is at work
        since = seen[0] if is_hung else self._pending or seen[0]
        is_second = is_hung and len(seen) > 1 and now - seen[1] > HURRY_S
        return is_second or now - since > LEAVE_S

    def _has_handled(self) -> bool:
        """Whether the main thread has got as far as to handle a signal."""
        return self.suite is not None and self.suite.interrupts.has_come

    def _say(self, text: str) -> None:
        """Print it where the run is shown, or, if the main thread hangs, to standard error."""
        session = self.suite.session if self.suite is not None else None
        if session is None:
            self._write(f"{SHARED_DIR}: {text}")
            return
        session.board.post(SHARED_DIR, text)
        self._stopped.wait(TAKE_S)
        for news in session.board.take_news():
            self._write(f"  {news.phase}: {news.text}")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._terminal, f"\n{line}\n".encode(errors="replace"))

    def _leave(self, path: Path) -> NoReturn:
        """End the process; what the run is made of can be attached."""
        flush = threading.Thread(target=sys.__stdout__.flush if sys.__stdout__ else None)
        flush.daemon = True
        flush.start()
        flush.join(HURRY_S)
        self._write(f"pytest leaves, since {path} does not answer; {self._describe_run()}")
        os._exit(pytest.ExitCode.INTERRUPTED)

    def _describe_run(self) -> str:
        if self.suite is None or self.suite.jobs is None:
            return "nothing was submitted by this command"
        run, session = self.suite.run_id, self.suite.session
        states = session.board.snapshot() if session is not None else []
        jobs = [state.job_id for state in states if state.job_id and state.state != DONE]
        word = f"--cluster {self._profile.name} --cluster"
        # A screen cannot be attached.
        attach = f"{word}-attach {run} goes on with the run, and " if session is not None else ""
        return (
            f"not confirmed that these have ended: {', '.join(jobs) or 'its jobs'}; once it "
            f"answers, {attach}{word}-reap {run} ends what is left"
        )
