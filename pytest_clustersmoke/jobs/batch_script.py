"""The parts of a batch script that both backends share."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir


def setup(phase: Phase, profile: Profile) -> tuple[str, ...]:
    """The profile's set-up lines, and those of a fault that is staged."""
    return (*profile.setup, *(phase.staged.setup if phase.staged else ()))


def interpreter(phase: Phase, profile: Profile) -> str:
    """The shell command for Python on the nodes; without one in the profile, this Python."""
    python = profile.python or shlex.quote(sys.executable)
    flags = phase.staged.python_flags if phase.staged else ""
    return f"{python} {flags}".rstrip()


def environment(phase: Phase) -> list[str]:
    """The profile's variables; the node sets them again, since they may not survive srun."""
    lines = [f"unset {name}" for name in phase.env_unset]
    lines += [f"export {name}={shlex.quote(str(one.value))}" for name, one in phase.env_set.items()]
    return lines


def strict_setup(lines: Sequence[str], directory: PhaseDir) -> list[str]:
    """The set-up lines under `set -e`: the first that fails is written down and ends the job.

    /etc/profile comes first: under cron no shell has read it, and `module` is defined there.
    """
    if not lines:
        return []
    named = all(is_complete(line) for line in lines)
    script = [
        "[ -r /etc/profile ] && . /etc/profile",
        f"clustersmoke_failed={shlex.quote(str(directory.setup_failed))} clustersmoke_line=",
        # $BASH_COMMAND alone would name the last command inside `module`, which is a function.
        """trap 'printf "%s\\t%s\\n" "$?" "${clustersmoke_line:-$BASH_COMMAND}" """
        """> "$clustersmoke_failed"' EXIT""",
        "set -e",
    ]
    for line in lines:
        script += [f"clustersmoke_line={shlex.quote(line)}"] if named else []
        script.append(line)
    return [*script, "set +e", "trap - EXIT"]


@lru_cache
def is_complete(line: str) -> bool:
    """Whether a line is whole by itself: between the parts of an `if` or of a here-document no
    other line may be put."""
    if "<<" in line:
        return False
    try:
        checked = subprocess.run(["bash", "-n", "-c", line], capture_output=True, check=False)
    except OSError:
        return False
    return checked.returncode == 0
