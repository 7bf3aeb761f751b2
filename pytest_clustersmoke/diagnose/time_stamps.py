"""Time stamps in logs: ISO 8601 in its many spellings, glog's (torch, NCCL), and syslog's.

Most have no time zone, and many no year.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d{1,9})?)"
FORMS = (
    re.compile(
        r"\b(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T _]"
        rf"{_CLOCK} ?(?P<zone>Z|[-+]\d\d:?\d\d)?"
    ),
    # torch's `[E1121 20:32:39.123`; some builds omit the month's leading zero.
    re.compile(rf"\b[IWEF](?P<month>\d\d?)(?P<day>\d\d) {_CLOCK}"),
    re.compile(rf"\b(?P<month>{'|'.join(MONTHS)}) (?P<day>[ \d]\d) {_CLOCK}"),
)
# Month, day, hour, minute, second: what all stamps have.
Time = tuple[int, int, int, int, float]


class TimeStamp(NamedTuple):
    """A stamp as written; `zone` is `Z`, an offset such as `+09:00`, or empty."""

    time: Time
    year: int | None
    zone: str

    def unix_time(self, zone: timezone | None, near: float) -> float | None:
        """The moment in Unix seconds, in the stamp's own zone, or in `zone` (None is this
        machine's); without a year, in the one closest to `near`. None if there is no such moment.
        """
        month, day, hour, minute, second = self.time
        try:
            zone = _parse_zone(self.zone) if self.zone else zone
            now = datetime.fromtimestamp(near, timezone.utc).year
        except (ValueError, OverflowError, OSError):  # an event's time, which a job wrote
            return None
        moments = []
        for year in (now - 1, now, now + 1) if self.year is None else (self.year,):
            try:
                begin = datetime(year, month, day, hour, minute, tzinfo=zone).timestamp()
            except (ValueError, OverflowError, OSError):
                continue
            moments.append(begin + second)
        return min(moments, key=lambda moment: abs(moment - near), default=None)


def find_stamps(text: str) -> list[TimeStamp]:
    """The stamps in a text, in order."""
    matches = [match for form in FORMS for match in form.finditer(text)]
    stamps = map(_parse_stamp, sorted(matches, key=lambda match: match.start()))
    return [stamp for stamp in stamps if stamp is not None]


def last_time_in(text: str) -> Time | None:
    stamps = find_stamps(text)
    return stamps[-1].time if stamps else None


def _parse_stamp(match: re.Match[str]) -> TimeStamp | None:
    """The stamp; None if its numbers cannot be a date and a time."""
    parts = match.groupdict()
    word = parts["month"]
    month = MONTHS.index(word) + 1 if word in MONTHS else int(word)
    day, hour, minute = int(parts["day"]), int(parts["hour"]), int(parts["minute"])
    second = float(parts["second"].replace(",", "."))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    year = parts.get("year")
    time = month, day, hour, minute, second
    return TimeStamp(time, int(year) if year else None, parts.get("zone") or "")


def _parse_zone(text: str) -> timezone:
    """The zone of a stamp; raises ValueError if it does not exist."""
    if text == "Z":
        return timezone.utc
    digits = text[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(ahead if text[0] == "+" else -ahead)
