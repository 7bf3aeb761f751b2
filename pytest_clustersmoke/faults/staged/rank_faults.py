"""Ranks that die, hang, fall behind or call other collectives than the rest, and devices that
compute wrongly or slowly before they train."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ...rank.proof import find_optimizer
from .staging import AT_STEP, NO_PROOF, Staging, cannot_stage

LEAST_SLEEP_S = 0.25
# Rank 0 enters the collective this late; the waiting rank is killed after half that time.
LATE_S = 3.0
LEAST_BURN_S = 0.05
WRONG_AT = 100  # the known product that is changed
SLOWER = 4  # times the work of a device


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledAtStart(Staging):
    def introduced(self) -> None:
        if self.chosen:
            self.stage()
            _kill()


class AtStep(Staging, ABC):
    """Acts on one rank at the start of its third step."""

    def before_step(self, index: int, count: int) -> None:
        if self.chosen and index == min(AT_STEP, count - 1):
            self.stage()
            self.act()

    @abstractmethod
    def act(self) -> None:
        """Stage the fault on that rank."""


class Killed(AtStep):
    def act(self) -> None:
        _kill()


class Exited(AtStep):
    def act(self) -> None:
        os._exit(3)


class Raised(AtStep):
    def act(self) -> None:
        raise ValueError(f"staged: {self.name}")


class Hung(AtStep):
    def act(self) -> None:
        threading.Event().wait()


class KilledInCollective(Staging):
    """All ranks enter an extra collective, rank 0 late; the chosen one is killed while it waits."""

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
    """All ranks but the chosen one enter an extra collective."""

    def before_step(self, index: int, count: int) -> None:
        if index != min(AT_STEP, count - 1):
            return
        if self.chosen:
            self.stage()
        else:
            self.rank.barrier()


class Slow(Staging):
    """The chosen rank sleeps in each step for as long as the step takes."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._began = 0.0

    def is_slow(self) -> bool:
        return self.chosen

    def before_step(self, index: int, count: int) -> None:
        if self.is_slow():
            self.stage()
            took_s = time.perf_counter() - self._began if index else 0.0
            time.sleep(max(LEAST_SLEEP_S, took_s))
            self._began = time.perf_counter()


class AllSlow(Slow):
    def is_slow(self) -> bool:
        return True


class SlowPart(Staging, ABC):
    """In each pass of one part of a step the chosen rank computes for as long as its fastest step
    took."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._began = self._burnt_s = 0.0
        self._step_s = math.inf

    def before_step(self, index: int, count: int) -> None:
        if not self.chosen:
            return
        if index:
            step_s = time.perf_counter() - self._began - self._burnt_s
            self._step_s = min(self._step_s, step_s)
        else:
            self.slow_down()
        self._began, self._burnt_s = time.perf_counter(), 0.0

    @abstractmethod
    def slow_down(self) -> None:
        """Let the part call `burn` in each pass."""

    def burn(self) -> None:
        """On CUDA between two kernels, whose events then lie further apart; on CPU by CPU time, in
        which a rank's own step is measured there."""
        import torch

        self.stage()
        clock = time.process_time
        if self.rank.device.type == "cuda":
            torch.cuda.synchronize()
            clock = time.perf_counter
        began, end = time.perf_counter(), clock() + max(LEAST_BURN_S, self._least_step_s)
        while clock() < end:
            pass
        self._burnt_s += time.perf_counter() - began

    @property
    def _least_step_s(self) -> float:
        return self._step_s if math.isfinite(self._step_s) else 0.0


class SlowBackward(SlowPart):
    def slow_down(self) -> None:
        if not self.parameters:
            raise cannot_stage(NO_PROOF)
        self.parameters[0].register_hook(lambda _: self.burn())


class SlowOptimizer(SlowPart):
    def slow_down(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self.proof is None or find_optimizer(self.proof) is None:
            raise cannot_stage("the program's proof names no optimizer")
        register_optimizer_step_post_hook(lambda *_: self.burn())


class WrongAnswer(Staging):
    """One answer of the chosen rank's known products is wrong."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._calls = 0

    def multiply(self, multiply: Callable[[], Any]) -> Any:
        product = multiply()
        self._calls += 1
        if self.chosen and self._calls == WRONG_AT:
            self.stage()
            product[0, 0] += 1
        return product


class SlowDevice(Staging):
    """The chosen rank repeats each multiplication."""

    def multiply(self, multiply: Callable[[], Any]) -> Any:
        if self.chosen:
            self.stage()
            for _ in range(SLOWER - 1):
                multiply()
        return multiply()


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
    "rank-slow-backward": SlowBackward,
    "rank-slow-optimizer": SlowOptimizer,
    "device-wrong-answer": WrongAnswer,
    "device-slow": SlowDevice,
}
