"""A metric of a phase, and the two ways in which a criterion does not pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from _pytest.outcomes import Skipped  # pytest.skip.Exception, by a name that type checkers know

from ..config.metrics import METRICS, compare
from ..text import sanitize_lines

if TYPE_CHECKING:  # pydantic is not loaded by a plain collection
    from ..config.expectations import Reference

# The two kinds that `require: [transports]` stands for, judged separately.
INSIDE, BETWEEN = "transports inside nodes", "transports between nodes"
# The kind of everything about a phase whose result pytest stopped waiting for.
RESULT = "result"


class Unmeasured(Skipped):
    """Raised where a criterion cannot be judged. If the profile's `require` lists `kind`, the
    verdict is INCONCLUSIVE."""

    def __init__(self, kind: str, reason: str) -> None:
        message = sanitize_lines(f"not measured ({kind}): {reason}")
        super().__init__(message, _use_item_location=True)
        self.kind = kind


class WrongDevice(AssertionError):
    """A criterion failed, and shows that the devices of these `ranks` compute wrongly."""

    def __init__(self, message: str, ranks: Iterable[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


def fail(message: str, wrong_ranks: Iterable[int] = ()) -> NoReturn:
    """Fail a criterion. The message is sanitized, since it may quote ranks."""
    __tracebackhide__ = True
    text, wrong = sanitize_lines(message), tuple(wrong_ranks)
    raise WrongDevice(text, wrong) if wrong else AssertionError(text)


@dataclass(frozen=True)
class Metric:
    """A metric of the phase: the worst value over ranks and the cluster's reference."""

    name: str
    value: float
    reference: Reference | None
    judged: set[str] = field(default_factory=set)
    resized: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return METRICS[self.name].unit

    def check(self) -> None:
        """Fail if the value is outside the reference; without a reference of the phase's sizes it
        is unmeasured."""
        __tracebackhide__ = True
        comparison = compare(self.name, self.value, self.reference, self.resized)
        if comparison.met is None:
            raise Unmeasured("references", comparison.text)
        self.judged.add("references")
        if not comparison.met:
            fail(comparison.text)
