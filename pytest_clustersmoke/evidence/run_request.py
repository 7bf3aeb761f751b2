"""Who asked for a run, where, with which command and in which time zone: for run.json and the
record. Nobody needs the secrets of a command to run it again, so they are left out.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from ..text import sanitize_line
from .run_counts import RecordModel
from .telemetry import parse_offset, parse_text
from .variable_names import HIDDEN, SECRET_VALUE, may_be_secret

MAX_COMMAND = 4000  # characters
# A name before its value: TOKEN=x, small.env.TOKEN=x, --api-key=x, {"token": "x"}, --api-key x.
_NAMED = re.compile(
    r"(?<!\w)(?P<name>[A-Za-z_][\w-]*)['\"]?\s*(?:=|:(?!:))\s*(?=\S)|"
    r"(?<![\w-])--(?P<option>[A-Za-z][\w-]*)\s+(?=\S)"
)


class RequestRecord(RecordModel):
    """Who asked for the run, and how."""

    user: str = Field(description="who started it; empty: unknown")
    host: str = Field(description="where pytest ran")
    command: str = Field(description="without secrets; empty: unknown")
    utc_offset_s: int | None = Field(
        description="of the local time where it began, in seconds east of UTC; null: unknown"
    )
    publish: Literal["all", "names"] = Field(
        description="names: the user, paths, UUIDs and serial numbers are left out"
    )


def user_name() -> str:
    """The user's name; empty if this machine has none for the user id (a container)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def describe_requester() -> dict[str, Any]:
    """Who asks for a run now, and in which time zone, for run.json."""
    return {"user": user_name(), "utc_offset_s": time.localtime().tm_gmtoff}


def describe_command(arguments: Iterable[object]) -> str:
    """The command of a pytest with these arguments, as a shell takes it, without secrets."""
    words = _mask([sanitize_line(str(word)[:MAX_COMMAND]) for word in arguments])
    return shlex.join(["pytest", *words])[:MAX_COMMAND]


def _mask(words: list[str]) -> Iterator[str]:
    """The words; (hidden) in place of what may be a secret."""
    is_next = False
    for word in words:
        yield HIDDEN if is_next else _mask_word(word)
        # `--api-key VALUE`
        is_next = re.fullmatch(r"--[\w-]+", word) is not None and may_be_secret(word[2:], "")


def _mask_word(word: str) -> str:
    """The word up to the first value that may be a secret, by its name or by itself."""
    starts = [
        found.end()
        for found in _NAMED.finditer(word)
        if may_be_secret(found["name"] or found["option"], word[found.end() :].split()[0])
    ]
    starts += [found.start() for found in SECRET_VALUE.finditer(word)]
    return f"{word[: min(starts)]}{HIDDEN}" if starts else word


def read_request(about: Mapping[str, Any]) -> RequestRecord:
    """What a run.json says about the request; what older ones lack is unknown."""
    return RequestRecord(
        user=parse_text(about.get("user")) or "",
        host=parse_text(about.get("host")) or "",
        command=parse_text(about.get("command")) or "",
        utc_offset_s=parse_offset(about.get("utc_offset_s")),
        publish="names" if about.get("publish") == "names" else "all",
    )
