"""Ranks that die, stand still, fall behind or leave the order of the others' collectives."""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod

from .staging import AT_STEP, Staging

LEAST_SLEEP_S = 0.25
# Rank 0 comes to the collective so late; the rank that waits there is killed at half the time.
LATE_S = 3.0


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledAtStart(Staging):
    def introduced(self) -> None:
        if self.chosen:
            self.stage()
            _kill()


class AtStep(Staging, ABC):
    """Something happens to one rank as its third step begins."""

    def before_step(self, index: int, count: int) -> None:
        if self.chosen and index == min(AT_STEP, count - 1):
            self.stage()
            self.happen()

    @abstractmethod
    def happen(self) -> None:
        """What happens to that rank."""


class Killed(AtStep):
    def happen(self) -> None:
        _kill()


class Exited(AtStep):
    def happen(self) -> None:
        os._exit(3)


class Raised(AtStep):
    def happen(self) -> None:
        raise ValueError(f"staged: {self.name}")


class Hung(AtStep):
    def happen(self) -> None:
        threading.Event().wait()


class KilledInCollective(Staging):
    """All ranks come to one more collective, rank 0 late; the chosen one is killed as it waits."""

    def before_step(self, index: int, count: int) -> None:
        if index != min(AT_STEP, count - 1):
            return
        if self.chosen:
            self.stage()
            killer = threading.Timer(LATE_S / 2, _kill)
            killer.daemon = True
            killer.start()
        elif self.rank.rank == 0:
            time.sleep(LATE_S)
        self.rank.barrier()


class OutOfStep(Staging):
    """All ranks but one come to one more collective."""

    def before_step(self, index: int, count: int) -> None:
        if index != min(AT_STEP, count - 1):
            return
        if self.chosen:
            self.stage()
        else:
            self.rank.barrier()


class Slow(Staging):
    """A rank sleeps in each step as long as the step takes."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._began = 0.0

    def sleeps(self) -> bool:
        return self.chosen

    def before_step(self, index: int, count: int) -> None:
        if self.sleeps():
            self.stage()
            took_s = time.perf_counter() - self._began if index else 0.0
            time.sleep(max(LEAST_SLEEP_S, took_s))
            self._began = time.perf_counter()


class AllSlow(Slow):
    def sleeps(self) -> bool:
        return True


STAGINGS: dict[str, type[Staging]] = {
    "rank-killed-at-start": KilledAtStart,
    "rank-killed": Killed,
    "rank-killed-in-collective": KilledInCollective,
    "rank-exited": Exited,
    "rank-raised": Raised,
    "rank-hung": Hung,
    "rank-out-of-step": OutOfStep,
    "rank-slow": Slow,
    "all-slow": AllSlow,
}
