"""A metric of a phase, and the two ways in which a criterion ends without a pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from _pytest.outcomes import Skipped  # pytest.skip.Exception, by the name that type checkers know

from ..config.metrics import METRICS, compare
from ..text import sanitize_lines

if TYPE_CHECKING:  # pydantic is not loaded by a plain collection
    from ..config.profile import Reference

# The two sides of what `require: [transports]` asks for, as criteria judge them.
INSIDE, BETWEEN = "transports inside nodes", "transports between nodes"


class Unmeasured(Skipped):
    """This cannot be judged here. `kind` is what the profile's `require` may ask for: then the
    verdict is INCONCLUSIVE."""

    def __init__(self, kind: str, reason: str) -> None:
        words = sanitize_lines(f"not measured ({kind}): {reason}")
        super().__init__(words, _use_item_location=True)
        self.kind = kind


def fail(message: str) -> NoReturn:
    """Fail a criterion. What ranks said may stand in the message, so it is cleaned."""
    __tracebackhide__ = True
    raise AssertionError(sanitize_lines(message))


@dataclass(frozen=True)
class Metric:
    """A metric of the phase: the worst over ranks, with its unit and the cluster's reference."""

    name: str
    value: float
    reference: Reference | None
    judged: set[str] = field(default_factory=set)

    @property
    def unit(self) -> str:
        return METRICS[self.name].unit

    def check(self) -> None:
        """Fail where the value is outside the reference; without a reference this is unmeasured."""
        __tracebackhide__ = True
        comparison = compare(self.name, self.value, self.reference)
        if comparison.met is None:
            raise Unmeasured("references", comparison.text)
        self.judged.add("references")
        if not comparison.met:
            fail(comparison.text)
