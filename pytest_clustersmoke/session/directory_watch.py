"""A shared directory that does not answer: two threads notice, say so, and end pytest if it was
interrupted.

A call into a file system whose server is away does not return, and no signal reaches the thread
that made it. If that is the main thread, it can neither print anything nor see Ctrl-C.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

import pytest

from ..config.profile import Profile
from .interrupts import SIGNALS
from .live.board import DONE
from .live.live_view import SHARED_DIR
from .suite import Suite

NAME_S = 10.0  # without an answer, before it is said
# From a signal, or the question without an answer if that came later, to the end of pytest. 20 s
# are promised; the question may come ASK_EVERY_S after the directory began to hang.
LEAVE_S = 16.0
HURRY_S = 1.0  # the same from a second signal
ASK_EVERY_S = 2.0
LOOK_S = 0.2
MOST_LOOKS = 5  # as many times LOOK_S is the most that counts between two looks
TAKE_S = 1.0  # in this time a main thread that is alive prints what is on the board

_wakeups: set[int] = set()  # where the signals of this process are written to


def _release_wakeup(own: Collection[int]) -> None:
    """Have signals written to none of these any more; another's place stays as it is."""
    with contextlib.suppress(ValueError):  # not in the main thread
        if (current := signal.set_wakeup_fd(-1)) not in own:
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)


# The signals of a forked child are not its parent's.
os.register_at_fork(after_in_child=lambda: _release_wakeup(_wakeups))


class DirectoryWatch:
    """Watches a profile's shared directory between `start` and `stop`. Call both in the main
    thread."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.suite: Suite | None = None  # once there is one
        self._asked: tuple[int, Path | None] = (0, None)  # the last question; None: all answered
        # When signals were seen that a thread took since all was answered, and since when one is
        # pending that none takes.
        self._taken: list[float] = []
        self._pending: float | None = None
        self._stopped = threading.Event()
        self._pipe: tuple[int, int] | None = None

    def start(self) -> None:
        self._terminal = os.dup(2)
        # The C half of a signal handler runs in any thread, and writes there.
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(ValueError):  # not in the main thread
            before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            _wakeups.add(self._pipe[1])
            if before != -1:  # an event loop runs pytest, and counts on it
                signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        for name, run in (("ask", self._ask), ("look", self._look)):
            name = f"clustersmoke-directory-{name}"
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        if self._pipe is not None:
            _release_wakeup({self._pipe[1]})
            _wakeups.discard(self._pipe[1])
        self._stopped.set()

    def _ask(self) -> None:
        numbers = itertools.count(1)
        while not self._stopped.is_set():
            run = self.suite.run if self.suite is not None else None
            for path in (self._profile.shared_dir, *([run.journal] if run is not None else [])):
                self._asked = next(numbers), path
                with contextlib.suppress(OSError):  # an error is an answer
                    os.statvfs(path)  # no client answers that from its cache
                    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            self._asked = next(numbers), None
            self._stopped.wait(ASK_EVERY_S)

    def _look(self) -> None:
        # A signal that no other thread takes is shown as pending here.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        assert self._pipe is not None
        asked, since, is_named = self._asked, 0.0, False
        now, last_look = 0.0, time.monotonic()
        while not self._stopped.wait(LOOK_S):
            # The directory is not blamed while this process stands still, or one call of the main
            # thread keeps the interpreter.
            look = time.monotonic()
            now += min(look - last_look, MOST_LOOKS * LOOK_S)
            last_look = look
            if self._asked != asked:
                if is_named:
                    self._say(f"{asked[1]} answers again, after {now - since:.0f} s")
                asked, since, is_named = self._asked, now, False
                if asked[1] is None and not self._has_handled():  # another has had the signals
                    self._taken.clear()
            self._note_signals(self._pipe[0], now)
            if (path := asked[1]) is None or now - since <= NAME_S:
                continue
            if not is_named:
                is_named = True
                self._say(f"{path} has not answered for {NAME_S:g} s: waiting for it")
            if self._is_to_leave(now, since) and self._asked == asked:
                self._leave(path)
        for descriptor in (*self._pipe, self._terminal):
            os.close(descriptor)

    def _note_signals(self, wakeup: int, now: float) -> None:
        with contextlib.suppress(OSError):  # nothing there, or another has closed it
            self._taken += [now for number in os.read(wakeup, 64) if number in SIGNALS]
        is_pending = bool(signal.sigpending() & {*SIGNALS})
        self._pending = (self._pending or now) if is_pending else None

    def _is_to_leave(self, now: float, since: float) -> bool:
        """Whether pytest is to end, while a question has had no answer since then."""
        taken = self._taken
        if not taken and self._has_handled():  # another has the pipe's place
            taken = [since]
        seen = sorted([*taken, *([self._pending] if self._pending else [])])
        is_second = len(seen) > 1 and seen[1] >= since and now - seen[1] > HURRY_S
        return is_second or (bool(seen) and now - max(seen[0], since) > LEAVE_S)

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
        for news in session.board.take_news(SHARED_DIR):
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
