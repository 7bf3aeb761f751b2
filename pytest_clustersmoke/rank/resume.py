"""Stops a training loop after some steps, saves its state, and goes on in new processes.

The first attempt of a phase with `resume` ends its loop early. The program saves; what it saved is
hashed and noted beside it. The next attempt loads it into a model built anew, and the hashes are
compared. The loss of the next batch is computed before the stop, and must be that of the first step
after it: then the data go on where they stopped, and not from their beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..evidence.run_directory import RESTART, read_json, write_json
from . import checkpoint
from .process_group import broadcast_object, reduce_max
from .proof import Proof
from .rank_environment import RankEnvironment, RankMisuse
from .rank_events import RankEventWriter
from .replay import Randomness

PROGRESS = "progress.json"
AGREE_EVERY_S = 1.0


class Resume:
    """Where the loop of this attempt begins and ends. `first` is its first step, from 0."""

    def __init__(self, environment: RankEnvironment, events: RankEventWriter) -> None:
        directory = environment.phase_dir
        self._attempt = directory.attempt if directory is not None else 0
        self._rank, self._world_size = environment.rank, environment.world_size
        self._planned = environment.resume
        self._stop_file: Path | None = None
        if directory is not None:
            self._stop_file = directory.stop_asked(environment.node_rank)
        self._is_asked = False
        self._agree_at = self._agreed_step = 0
        self._agreed_at = time.monotonic()
        self._events = events
        self._stop_at: int | None = None
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
        planned = self._planned < count and self._attempt == 0
        self._loop_ends = self._planned if planned and self._planned else count
        self._stop_at = self._loop_ends if self._loop_ends < count else None
        return self._loop_ends

    def may_stop(self, step: int) -> bool:
        """Whether the ranks must `agree` before this step."""
        return bool(self._planned) and step >= self._agree_at and step > self.first

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

    def load(self, output: Path, load: Callable[[], Any]) -> int:
        """Load what the attempt before saved, and compare it; returns the first step, from 0."""
        saved = broadcast_object(read_json(output / PROGRESS))
        match saved:
            case {"step": int(step), "world_size": int(world_size), "digest": dict(expected)}:
                loaded = checkpoint.digest(load())
            case None if self._attempt >= RESTART:  # it was ended before it could save
                self._events.event("resume", step=0)
                return 0
            case _:
                raise RankMisuse(
                    f"attempt {self._attempt + 1} found no {PROGRESS} in {output}; expected "
                    "rank.save_progress(...) at the end of the attempt before"
                )
        mismatched = checkpoint.mismatched_paths(checkpoint.Digest(expected), loaded)
        if world_size == self._world_size:
            self._random = Randomness.load(self._random_file(output))
        self.first = step
        self._events.event(
            "resume",
            step=step,
            saved_by=world_size,
            equal=not mismatched,
            tensors=loaded.tensors,
            mismatched=mismatched[:10],
        )
        return step

    def _random_file(self, output: Path) -> Path:
        return output / "random" / f"rank_{self._rank:05d}.pt"

    def begin_loop(self) -> None:
        """Draw the random numbers (of dropout, say) that the loop would have drawn without a stop;
        the program may have drawn others since it started."""
        if self._random is not None:
            self._random.restore()

    def save(
        self,
        output: Path,
        is_main: bool,
        state: Any,
        next_loss: Callable[[int], Any] | None,
    ) -> None:
        """Note what was saved, once the program has saved it."""
        digest = checkpoint.digest(state)
        random_file = self._random_file(output)
        random_file.parent.mkdir(exist_ok=True)
        Randomness().save(random_file)
        if is_main:
            values = {"step": self._stop_at, "world_size": self._world_size, "digest": digest}
            write_json(output / PROGRESS, values)
        loss = None if next_loss is None else float(next_loss(self._stop_at or 0))
        fields = {"step": self._stop_at, "asked": self._is_asked, "next_loss": loss}
        self._events.event("stop", **fields, digest=digest.hex)

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
