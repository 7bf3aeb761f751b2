"""Runs a training loop; stops it after some steps, saves its state, goes on in new processes.

The first attempt of a phase with `resume` ends its loop early. The program saves; what it saved is
hashed and noted beside it. The next attempt loads it into a model built anew, and the hashes are
compared. The loss of the next batch is computed before the stop, and must be that of the first step
after it: then the data go on where they stopped, and not from their beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..evidence.run_directory import list_directory, rank_progress, read_json, write_json
from . import checkpoint
from .process_group import reduce_max
from .proof import Proof
from .rank_environment import RankEnvironment, RankMisuse
from .rank_events import RankEventWriter
from .replay import Randomness
from .steps import Step, StepLog

AGREE_EVERY_S = 1.0


class Resume:
    """Where the loop of this attempt begins and ends. `first` is its first step, from 0."""

    def __init__(self, environment: RankEnvironment, events: RankEventWriter) -> None:
        directory = environment.phase_dir
        self._attempt = directory.attempt if directory is not None else 0
        self._rank, self._world_size = environment.rank, environment.world_size
        self._may_stop = bool(environment.resume)
        self._planned = 0 if environment.resume is True else environment.resume
        self._stop_file: Path | None = None
        if directory is not None:
            self._stop_file = directory.stop_asked(environment.node_rank)
        self._is_asked = False
        self._agree_at = self._agreed_step = 0
        self._agreed_at = time.monotonic()
        self._events = events
        self._stop_at: int | None = None
        self._saved = False
        self._random: Randomness | None = None
        self.first = 0

    @property
    def is_later_attempt(self) -> bool:
        return self._attempt > 0

    def end_of_loop(self, count: int) -> int:
        """The step before which the loop of `count` steps ends in this attempt."""
        if self.first >= count:
            raise RankMisuse(
                f"count={count} steps; expected more than the {self.first} of the attempt before"
            )
        if self._attempt == 0 and 0 < self._planned < count:
            self._stop_at = self._planned
            return self._planned
        return count

    def may_stop(self, step: int) -> bool:
        """Whether the ranks must `agree` before this step."""
        return self._may_stop and step >= self._agree_at and step > self.first

    def agree(self, step: int, device: str) -> bool:
        """Whether the scheduler will end the job soon, and all ranks stop before this step. They
        agree about once a second, since each time they wait for each other and for the device."""
        import torch

        now = time.monotonic()
        step_s = (now - self._agreed_at) / max(1, step - self._agreed_step)
        self._agreed_at, self._agreed_step = now, step
        pause = max(1, int(AGREE_EVERY_S / max(step_s, 1e-6))) if self._rank == 0 else 0
        asked = self._stop_file is not None and self._stop_file.exists()
        values = torch.tensor([int(asked), pause], device=device)
        reduce_max(values)
        stops, pause = values.tolist()
        self._agree_at = step + pause
        if stops:
            self._stop_at, self._is_asked = step, True
        return bool(stops)

    @property
    def should_stop(self) -> bool:
        return self._stop_at is not None

    def check_saved(self) -> None:
        """Raises RankMisuse if the program ends before its last step and has saved nothing."""
        if self._stop_at is not None and not self._saved:
            raise RankMisuse(
                f"the loop ended after {self._stop_at} steps, since the phase has `resume`, and "
                "the program saved nothing; expected rank.save_progress(...) if rank.should_stop"
            )

    def load(self, output: Path, load: Callable[[], Any]) -> int:
        """Load what the attempt before saved, and compare it; returns the first step, from 0."""
        own = self._own_file(output, "json")
        list_directory(own.parent)  # clears NFS's cache of missing files
        match read_json(own):
            case {"step": int(step), "world_size": self._world_size, "digest": dict(expected)}:
                loaded = checkpoint.digest(checkpoint.load_shards(output, load))
            case found:
                what = (
                    "nothing" if found is None else f"progress of {found.get('world_size')} ranks"
                )
                raise RankMisuse(
                    f"attempt {self._attempt} found {what} in {own.parent}; expected what "
                    f"rank.save_progress(...) left there on {self._world_size} ranks"
                )
        compared = checkpoint.compare_digests(checkpoint.Digest(expected), loaded)
        self._random = Randomness.load(self._own_file(output, "pt"))
        self.first = step
        self._events.event("resume", step=step, **compared)
        return step

    def _own_file(self, output: Path, kind: str) -> Path:
        return rank_progress(output, self._rank, kind)

    def begin_loop(self) -> None:
        """Restore the random state, so that the loop (dropout, say) draws what it would have drawn
        without a stop; the program may have drawn numbers since it started. Restart the clock by
        which `agree` estimates the time of a step."""
        if self._random is not None:
            self._random.restore()
        self._agreed_step, self._agreed_at = self.first, time.monotonic()

    def run_loop(self, log: StepLog, device: str) -> Iterator[Step]:
        """The steps of the loop, until the last one or until all ranks agree to stop; then, in a
        twin run, those of its second pass."""
        first = self.first
        self.begin_loop()
        for each in log.passes(first=1, calls_begin=True):
            for index in range(each.recorded, log.count):
                if each is log and self.may_stop(first + index):
                    with log.untimed():
                        stops = self.agree(first + index, device)
                    if stops:
                        return log.finish_early()
                each.begin()
                yield Step(first + index, each)
                if each.recorded != index + 1:
                    raise RankMisuse(
                        f"step {first + index + 1} was recorded {each.recorded - index} times; "
                        "expected one step.record(loss=...) at the end of each step"
                    )

    def save(self, output: Path, state: Any, loss_of: Callable[[int], Any] | None) -> None:
        """Note what was saved, once the program has saved it."""
        self._saved, step = True, self._stop_at or 0
        own = self._own_file(output, "json")
        own.parent.mkdir(exist_ok=True)
        Randomness().save(self._own_file(output, "pt"))
        digest = checkpoint.digest(state)
        values = {"step": step, "world_size": self._world_size, "digest": digest}
        write_json(own, values)
        fields: dict[str, Any] = {"step": step, "asked": self._is_asked, "digest": digest.hex}
        if loss_of is not None:
            fields |= {"next_loss": float(loss_of(step)), "first_loss": float(loss_of(0))}
        self._events.event("stop", **fields)

    def shift(self, proof: Proof) -> Proof:
        """The proof for a loop that begins at `first`: it counts its steps from 0."""
        first, peer_loss = self.first, proof.peer_loss
        if not first:
            return proof
        return replace(
            proof,
            local_loss=lambda index: proof.local_loss(first + index),
            peer_loss=peer_loss and (lambda index, rank: peer_loss(first + index, rank)),
        )
