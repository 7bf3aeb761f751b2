"""Logs that end well: what they report above their end was survived, and is not a failure.

A log ends well if its last lines say that the run succeeded, or if they show progress after an
error that the program caught. It does not if anything fails after that, a launcher included: then
all of the log counts. One rank's success is not another's: an error that names its rank was
survived only if that rank went on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .log_lines import rank_of_line

# Said at the end of a run: by MLPerf's logger, training scripts, the trainer of transformers,
# Lightning, torchrun, DeepSpeed's launcher, nccl-tests.
SUCCEEDED = re.compile(
    r'"status": "success"|'
    r"\btraining (?:is |was |has )?(?:complete|completed|finished|done)\b(?! ?[:=]? ?\d)|"
    r"'train_runtime': |\btrain_runtime {1,20}= |"
    r"`Trainer\.fit` stopped: |"
    r"worker group successfully finished|"
    r"\] Process \d{1,9} exits successfully|"
    r"# Out of bounds values : 0 OK",
    re.IGNORECASE,
)
# Said by a launcher of all its ranks.
ALL_SUCCEEDED = re.compile(r"worker group successfully finished|# Out of bounds values : 0 OK")
# torch labels the traceback of an exception that ends its rank.
ENDS_RANK = re.compile(r"\[rank\d{1,6}\]: ")
PROGRESS = re.compile(
    r"\b(?:steps?|iter|iterations?|epoch|batch|loss)\b\W{0,4}\d|"
    r"\d/\d{1,9} \[\d\d:\d\d|\dit/s|\ds/it",
    re.IGNORECASE,
)
OVER = re.compile(
    r"^(?:\d{1,6}: )?(?:all )?(?:done|finished|completed)\W{0,3}$|\b(?:run|job|epoch) (?:is )?"
    r"(?:done|finished|complete[d]?)\b|\b(\d{1,9})/\1\b|saved (?:the )?(?:final )?model",
    re.IGNORECASE,
)
# Said next to an error that the program caught.
CAUGHT = re.compile(
    rb"retrying|will (?:retry|(?:be )?try(?:ing)? again)|try(?:ing)? again (?:at|in|later|with)|"
    rb"retry loop|reducing (?:the )?(?:batch|micro)|decreasing batch size|"
    rb"(?:skip(?:ping|ped)|ignor(?:ing|ed)|drop(?:ping|ped)|discard(?:ing|ed)) "
    rb"(?:(?:this|that|the|a|bad|broken|invalid|corrupt(?:ed)?) ){0,2}"
    rb"(?:batch|sample|example|record|item|image|document|row|error|exception)\b|"
    rb"attempting to recover|continuing (?:anyway|training|without|with)|falling back to",
    re.IGNORECASE,
)
# What stdout still had buffered appears after the traceback of a rank that failed, but is shorter.
GOES_ON_LINES = 500
MAX_LINES = 60
AROUND_BYTES = 1000


@dataclass(frozen=True)
class LogEnd:
    """The last lines of a log that report success and progress."""

    succeeded: tuple[GoodLine, ...] = ()
    progress: tuple[GoodLine, ...] = ()
    over: bool = False  # something says that it is done, perhaps only a part

    @classmethod
    def of(cls, lines: Sequence[str], first: int) -> LogEnd:
        """From the last lines of a log, of which the first has this number."""
        numbered = list(enumerate(lines, first))[-MAX_LINES:]
        succeeded = [GoodLine.of(*pair) for pair in numbered if SUCCEEDED.search(pair[1][:4000])]
        progress = [GoodLine.of(*pair) for pair in numbered if PROGRESS.search(pair[1][:4000])]
        over = bool(succeeded) or any(OVER.search(line[:4000]) for _, line in numbered)
        return cls(tuple(succeeded), tuple(progress), over)

    def is_good(self, failures: Iterable[FailureLine]) -> bool:
        """Whether the run survived these failures."""
        known = list(failures)
        return all(map(self._survives, known)) if known else bool(self.succeeded)

    def _survives(self, failure: FailureLine) -> bool:
        if any(failure.is_before(line) for line in self.succeeded):
            return True
        after = [line.number for line in self.progress if failure.is_before(line)]
        return len(after) >= 2 and (failure.caught or after[-1] - failure.number > GOES_ON_LINES)

    def goes_on(self, number: int = 0) -> bool:
        """Whether the log shows progress or success after this line."""
        after = [line for line in self.progress if line.number > number]
        return len(after) >= 2 or any(line.number > number for line in self.succeeded)


class GoodLine(NamedTuple):
    """A line that reports success or progress, and its writer's rank, if that is certain."""

    number: int
    rank: int | None = None
    of_all: bool = False  # it speaks of all ranks

    @classmethod
    def of(cls, number: int, line: str) -> GoodLine:
        return cls(number, rank_of_line(line), ALL_SUCCEEDED.search(line[:4000]) is not None)


@dataclass(frozen=True)
class FailureLine:
    """The last line of a log that shows a failure, and its writer's rank, if that is certain;
    `caught` if the program caught all of them. `ends_rank`: it surely ended its rank."""

    number: int
    caught: bool = False
    rank: int | None = None
    ends_rank: bool = False

    def is_before(self, good: GoodLine) -> bool:
        """Whether a later line is good news for the rank that failed."""
        if good.number <= self.number:
            return False
        if good.of_all or self.rank is None or good.rank == self.rank:
            return True
        return good.rank is None and (self.caught or not self.ends_rank)


def is_caught(buffer: bytes, begin: int, end: int) -> bool:
    """Whether the text around a failure, between these bounds, says that the program caught it."""
    return CAUGHT.search(buffer, max(0, begin - AROUND_BYTES), end + AROUND_BYTES) is not None
