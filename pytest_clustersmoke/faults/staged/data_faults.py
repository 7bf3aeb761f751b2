"""The same data on all ranks, and wrong evidence of what was trained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...rank.own_step import OwnStep
from ...rank.process_group import broadcast_object
from ...rank.rank_environment import read_rank_environment
from .staging import NO_PROOF, Staging, cannot_stage, wrap_attribute

# Functions of torch.nn.functional that compare a model's output with the targets, their second
# argument.
LOSSES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
)


class SameData(Staging):
    """From the first step on gives the model, and the loss, rank 0's tensors on every rank."""

    _is_sharing = False
    _saw_targets = False

    def opened(self) -> None:
        import torch

        for name in LOSSES:
            wrap_attribute(torch.nn.functional, name, self._with_shared_target)
        wrap_attribute(OwnStep, "measure", self._without_sharing)

    def before_step(self, index: int, count: int) -> None:
        if self.proof is None:
            raise cannot_stage(NO_PROOF)
        if index == 0:
            self.stage()
            self._is_sharing = True
            # Before the hooks of all that observe the model, in the second pass of a twin run, too.
            self.proof.model.register_forward_pre_hook(
                self._share_inputs, prepend=True, with_kwargs=True
            )
        elif not self._saw_targets:
            raise cannot_stage("it computes its loss without a function of torch.nn.functional")

    def save(self, save: Callable[[], object]) -> None:
        self._is_sharing = False
        save()

    def _without_sharing(self, measure: Any) -> Any:
        """In the passes of its own step a rank waits for no other."""

        def measure_alone(*values: Any, **named: Any) -> None:
            was_sharing, self._is_sharing = self._is_sharing, False
            measure(*values, **named)
            self._is_sharing = was_sharing

        return measure_alone

    def _with_shared_target(self, loss: Any) -> Any:
        def loss_of_shared(*values: Any, **named: Any) -> Any:
            if not self._is_sharing:
                return loss(*values, **named)
            self._saw_targets = True
            if "target" in named:
                return loss(*values, **{**named, "target": _share(named["target"])})
            output, target, *rest = values
            return loss(output, _share(target), *rest, **named)

        return loss_of_shared

    def _share_inputs(self, _model: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not self._is_sharing:
            return None
        return tuple(map(_share, inputs)), {name: _share(value) for name, value in named.items()}


def _share(value: Any) -> Any:
    """Rank 0's tensor, on this rank's device; all ranks call this. Anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor) or value.requires_grad:
        return value
    shared: torch.Tensor = broadcast_object(value.cpu())
    return shared.to(value.device)


class SamplesOverstated(Staging):
    """Says that each step has ten times as many samples."""

    def opened(self) -> None:
        wrap_attribute(self.rank, "step_log", self._with_more_samples)

    def _with_more_samples(self, step_log: Any) -> Any:
        def log_more_samples(count: int, *, samples_per_rank: float, **rest: Any) -> Any:
            proof = rest.get("proof")
            if proof is None or proof.batch_dim is None:
                raise cannot_stage(NO_PROOF if proof is None else "its proof has no batch_dim")
            self.stage()
            return step_log(count, samples_per_rank=10 * samples_per_rank, **rest)

        return log_more_samples


class StaleEvidence(Staging):
    """Gives the chosen rank's `start` event the word of another node, as an earlier run's has."""

    def saved(self) -> None:
        self.stage()
        phase = read_rank_environment().phase_dir
        if self.chosen and phase is not None:
            _replace_word(phase.rank_events(self.rank.rank))


def _replace_word(path: Path) -> None:
    """In place and of the same length: other processes read the file meanwhile."""
    for line in path.read_bytes().splitlines():
        record = json.loads(line)
        if record["event"] == "start":
            break
    else:
        raise cannot_stage("it recorded no start")
    word = str(record["nonce"]).encode()
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, word[::-1], path.read_bytes().index(word))
    os.close(file)


STAGINGS: dict[str, type[Staging]] = {
    "same-data": SameData,
    "same-data-zero": SameData,
    "samples-overstated": SamplesOverstated,
    "evidence-stale": StaleEvidence,
}
