"""Modules that `setup` loads, looked for on this login node where it has the `module` command.

A warning and no error: some clusters have other modules on their nodes than on the login node.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import near

if TYPE_CHECKING:
    from ..cluster import Profile

ANSWER_S = 20.0
LOADS = frozenset({"load", "add"})
# Names and paths alone: what a variable or a command puts there is known on the node.
PLAIN = re.compile(r"[\w./+:@=-]+")
MISSING, LIKE, OVER = "clustersmoke-missing", "clustersmoke-like", "clustersmoke-over"
# Lmod and Modules from 4.1 on have `is-avail`; its answer is its status.
HEAD = """\
[ -r /etc/profile ] && . /etc/profile
type module || exit 90
module --version 2>&1 | grep -Eq 'Lua|Release ([5-9]|4\\.[1-9])' || exit 90
"""


def module_lines(profile: Profile) -> list[tuple[int, list[str]]]:
    """The lines of `setup` that call `module`, by their index, up to the first line of another
    kind: that may change what there is to load."""
    found = []
    for index, line in enumerate(profile.setup):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            break
        if not words:
            continue
        if words[0] not in ("module", "ml") or not all(PLAIN.fullmatch(one) for one in words):
            break
        if words[0] == "module" and len(words) > 1:
            found.append((index, words[1:]))
    return found


def missing_modules(profile: Profile, environ: Mapping[str, str]) -> list[str]:
    """A line for each module that `setup` loads and this login node does not have."""
    lines = module_lines(profile)
    if not any(words[0] in LOADS for _, words in lines):
        return []
    try:
        answer = subprocess.run(
            ["bash", "-c", script(lines)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return read(answer.stdout, profile)


def script(lines: list[tuple[int, list[str]]]) -> str:
    """Each line is done as on the node, since one module may bring others into sight; before a
    module is loaded it is looked for. One that is not there is told with those of its kind."""
    text = [HEAD]
    for index, words in lines:
        for name in words[1:] if words[0] in LOADS else ():
            kind = shlex.quote(name.split("/")[0])
            text.append(
                f"module is-avail {shlex.quote(name)} >/dev/null 2>&1 || "
                f"{{ echo {MISSING} {index} {shlex.quote(name)}; "
                f"module -t avail {kind} 2>&1 | sed 's/^/{LIKE} /'; }}"
            )
        text.append(f"module {shlex.join(words)} >/dev/null 2>&1")
    return "\n".join([*text, f"echo {OVER}", ""])


def read(answer: str, profile: Profile) -> list[str]:
    """The lines to say; none where the shell did not come to its end."""
    words = [line.split() for line in answer.splitlines()]
    if [OVER] not in words:
        return []
    found = []
    for at, line in enumerate(words):
        if len(line) == 3 and line[0] == MISSING and line[1].isdigit():
            name = line[2]
            like: list[str] = []
            for other in words[at + 1 :]:
                if other[:1] != [LIKE]:
                    break
                like += [one.removesuffix("(default)") for one in other[1:2]]
            hint = near(name, [one for one in like if one[-1:] not in ("/", ":")])
            text = (
                f"{profile.where('setup', int(line[1]))}: this login node has no module `{name}`, "
                "which a setup line loads; the nodes may have it"
            )
            found.append(f"{text}; {hint}" if hint else text)
    return found
