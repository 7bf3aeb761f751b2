"""Logs that end well: what they report above their end was survived, and is not a failure.

A log ends well if its last lines say that the run succeeded, or if they show progress after an
error that the program caught. It does not if anything fails after that, a launcher included: then
all of the log counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    rb"retrying|will retry|retry loop|reducing (?:the )?(?:batch|micro)|decreasing batch size|"
    rb"skipping (?:this )?batch|attempting to recover|discard(?:ing|ed) (?:this )?batch|"
    rb"falling back to",
    re.IGNORECASE,
)
# What stdout still had buffered appears after the traceback of a rank that failed, but is shorter.
GOES_ON_LINES = 500
MAX_LINES = 60
AROUND_BYTES = 1000


@dataclass(frozen=True)
class LogEnd:
    """The numbers of the last lines of a log that report success and progress; 0 if none does."""

    succeeded: int = 0
    progress: tuple[int, ...] = ()
    over: bool = False  # something says that it is done, perhaps only a part

    @classmethod
    def of(cls, lines: Sequence[str], first: int) -> LogEnd:
        """From the last lines of a log, of which the first has this number."""
        numbered = list(enumerate(lines, first))[-MAX_LINES:]
        succeeded = [number for number, line in numbered if SUCCEEDED.search(line[:4000])]
        progress = [number for number, line in numbered if PROGRESS.search(line[:4000])]
        over = bool(succeeded) or any(OVER.search(line[:4000]) for _, line in numbered)
        return cls(max(succeeded, default=0), tuple(progress), over)

    def is_good(self, failures: Iterable[FailureLine]) -> bool:
        """Whether the run survived these failures."""
        known = list(failures)
        last = max((line.number for line in known), default=0)
        if self.succeeded > last:
            return True
        after = [number for number in self.progress if number > last]
        if not known or len(after) < 2:
            return False
        return all(line.caught for line in known) or after[-1] - last > GOES_ON_LINES


@dataclass(frozen=True)
class FailureLine:
    """The last line of a log that shows a failure; `caught` if the program caught all of them."""

    number: int
    caught: bool = False


def is_caught(buffer: bytes, begin: int, end: int) -> bool:
    """Whether the text around a failure, between these bounds, says that the program caught it."""
    return CAUGHT.search(buffer, max(0, begin - AROUND_BYTES), end + AROUND_BYTES) is not None
