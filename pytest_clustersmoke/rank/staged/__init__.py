"""A rank that stages a fault: only in a phase whose spec names it, under `--cluster-prove`.

base.py           what a staging can do at each place where a program passes
ends.py           ranks that die, stand still, fall behind or leave the others' order
training.py       gradients, losses and results that are wrong
checkpoints.py    checkpoints that are cut, foreign or partial
settings.py       configurations that are wrong; what the job's own settings stage
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..core import Rank
from ..place import Place
from ..steps import StepLog
from . import checkpoints, ends, settings, training
from .base import Staging

if TYPE_CHECKING:
    import torch

STAGINGS: dict[str, type[Staging]] = {
    **ends.STAGINGS,
    **training.STAGINGS,
    **checkpoints.STAGINGS,
    **settings.STAGINGS,
}


class StagedRank(Rank):
    """A rank in which its phase's fault is staged."""

    def __init__(self, place: Place, timeout_s: float | None) -> None:
        super().__init__(place, timeout_s)
        fault = place.fault or {}
        name, at_rank = fault.get("name"), fault.get("rank")
        if name not in STAGINGS or type(at_rank) is not int:
            raise ValueError(f"no rank can stage {fault!r}; known: {', '.join(STAGINGS)}")
        self._staging = STAGINGS[name](self, name, self.rank == at_rank, self._voice.event)

    def _introduce(self, init: str) -> None:
        super()._introduce(init)
        self._staging.introduced()

    def group_opened(self) -> None:
        super().group_opened()
        self._staging.opened()

    def step_log(self, count: int, **sizes: Any) -> StepLog:
        log = super().step_log(count, **sizes)
        whole_start, whole_record = log.start, log.record

        def start() -> None:
            whole_start()
            self._staging.before_step(0, count)

        def record(loss: torch.Tensor | float | None = None) -> None:
            whole_record(loss)
            if log.recorded < count:
                self._staging.before_step(log.recorded, count)

        log.start, log.record = start, record  # type: ignore[method-assign]
        return log

    def verify_gradients(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        backward: Callable[[], object],
        **more: Any,
    ) -> bool:
        named = list(named_parameters)
        self._staging.parameters = [parameter for _, parameter in named]

        def staged() -> None:
            backward()
            self._staging.after_backward()

        return super().verify_gradients(named, backward=staged, **more)

    def save_checkpoint(self, save: Callable[[], object]) -> None:
        super().save_checkpoint(lambda: self._staging.save(save))
        self._staging.saved()
