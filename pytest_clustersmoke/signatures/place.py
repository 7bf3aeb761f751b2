"""Whose a line of a log is, and when it was written: only what the line says for certain.

A rank is told by torch's own `[rank3]:`; torchrun's `[default0]:` counts within a node, and srun's
labels count tasks. A host is told by NCCL's header, by syslog and by torchrun's summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Month, day, hour, minute, second: what all stamps have. Years and time zones are left aside.
Time = tuple[int, int, int, int, float]

PREFIX_CHARS = 200
RANK = re.compile(r"\[rank(\d{1,6})\]:|\(default_pg\) Rank (\d{1,6})\]")
NCCL_HEADER = re.compile(r"([A-Za-z0-9][\w.-]{0,254}):\d{1,9}:\d{1,9} \[-?\d{1,9}\] (?=\S)")
SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([\w.-]{1,255}) kernel:")
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
ISO = re.compile(r"\b\d{4}-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d{1,6})?)")
# glog's, of torch: `[E1121 20:32:39.123` and, from some builds, a month without its zero.
GLOG = re.compile(r"\b[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d{1,6})?)")
BSD = re.compile(r"\b(" + "|".join(MONTHS) + r") ([ \d]\d) (\d\d):(\d\d):(\d\d)")


def rank(line: str) -> int | None:
    found = RANK.search(line, 0, PREFIX_CHARS)
    return int(found.group(1) or found.group(2)) if found else None


def host(line: str) -> str | None:
    nccl = NCCL_HEADER.search(line, 0, PREFIX_CHARS) if "NCCL" in line else None
    found = nccl or SYSLOG.search(line, 0, PREFIX_CHARS)
    return found.group(1) if found else None


def time(text: str) -> Time | None:
    """The last time that a text tells."""
    best: tuple[int, Time] | None = None
    for pattern in (ISO, GLOG, BSD):
        for found in pattern.finditer(text):
            stamp = _time(found)
            if stamp is not None and (best is None or found.start() > best[0]):
                best = found.start(), stamp
    return best[1] if best else None


def _time(found: re.Match[str]) -> Time | None:
    month, day, hour, minute, second = found.groups()
    number = MONTHS.index(month) + 1 if month in MONTHS else int(month)
    stamp = number, int(day), int(hour), int(minute), float(second.replace(",", "."))
    fits = 1 <= number <= 12 and 1 <= stamp[1] <= 31 and stamp[2] < 24 and stamp[3] < 60
    return stamp if fits and stamp[4] < 61 else None


def told(groups: Mapping[str, str | None]) -> tuple[list[str], list[int]]:
    """Hosts and ranks that a signature's groups name."""
    hosts = [groups["host"]] if groups.get("host") else []
    ranks = [int(word) for word in re.findall(r"\d{1,6}", groups.get("rank") or "")]
    return [one for one in hosts if one], ranks
