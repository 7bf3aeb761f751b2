"""The batch script of a node's part of a job: the whole of it where sbatch does not get it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir


def make_script(
    phase: Phase, profile: Profile, directory: PhaseDir, comments: Sequence[str], executor: str = ""
) -> str:
    """The script that a node runs, without options of sbatch. `comments` say how it is started;
    `executor` is submitit's, where the environment does not name it."""
    python = python_command(phase, profile)
    lines = [
        "#!/bin/bash",
        *(f"# {comment}" for comment in comments),
        *preparation_lines(phase, profile, directory),
        *([f"export SUBMITIT_EXECUTOR={executor}"] if executor else []),
        f"exec {python} -u -m submitit.core._submit {shlex.quote(str(directory.submitit))}",
    ]
    return "\n".join(lines) + "\n"


def preparation_lines(phase: Phase, profile: Profile, directory: PhaseDir) -> list[str]:
    """What the script does before it starts Python."""
    setup = strict_setup_lines(setup_lines(phase, profile), directory)
    return [*setup, *environment_lines(phase)]


def setup_lines(phase: Phase, profile: Profile) -> tuple[str, ...]:
    """The setup lines of the profile, followed by those of a staged fault."""
    return (*profile.setup, *(phase.staged.setup if phase.staged else ()))


def python_command(phase: Phase, profile: Profile) -> str:
    """The shell command that starts Python on the nodes: the profile's `python`, or this one."""
    python = node_python(profile)
    flags = phase.staged.python_flags if phase.staged else ""
    return f"{python} {flags}".rstrip()


def node_python(profile: Profile) -> str:
    """The same, whatever the phase."""
    return profile.python or shlex.quote(sys.executable)


def environment_lines(phase: Phase) -> list[str]:
    """Lines that set the profile's variables. The node sets them again, since srun may drop
    them."""
    lines = [f"unset {name}" for name in phase.env_unset]
    lines += [
        f"export {name}={shlex.quote(str(value.value))}" for name, value in phase.env_set.items()
    ]
    return lines


def strict_setup_lines(lines: Sequence[str], directory: PhaseDir) -> list[str]:
    """The setup lines under `set -e`: the first one that fails is recorded and ends the job.

    /etc/profile is sourced first: it defines `module`, and under cron no shell has read it.
    """
    if not lines:
        return []
    can_mark_lines = all(is_complete(line) for line in lines)
    script = [
        "[ -r /etc/profile ] && . /etc/profile",
        f"clustersmoke_failed={shlex.quote(str(directory.setup_failed))} clustersmoke_line=",
        # $BASH_COMMAND alone would name the last command inside `module`, which is a function.
        """trap 'printf "%s\\t%s\\n" "$?" "${clustersmoke_line:-$BASH_COMMAND}" """
        """> "$clustersmoke_failed"' EXIT""",
        "set -e",
    ]
    for line in lines:
        script += [f"clustersmoke_line={shlex.quote(line)}"] if can_mark_lines else []
        script.append(line)
    return [*script, "set +e", "trap - EXIT"]


@lru_cache
def is_complete(line: str) -> bool:
    """Whether a line is a complete command. No line can be inserted inside an `if` or a
    here-document that spans several lines."""
    if "<<" in line:
        return False
    try:
        checked = subprocess.run(["bash", "-n", "-c", line], capture_output=True, check=False)
    except OSError:
        return False
    return checked.returncode == 0
