"""The batch script of a node's part of a job: the whole of it where sbatch does not get it."""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from submitit.core.utils import DelayedSubmission

from ..config.phase import SETUP_S, SIGNAL_EARLY_S, WIND_UP_S, Phase, has_default_timeout
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir, read_json
from ..evidence.variable_names import hide_assignments
from ..node import job_entry, node_job
from .backend import Backend, Refused, Submission

# A function of the shell that opens the run's directory as descriptor 9, by which its files are
# read then, as `node.job_entry` does. On one line, since comments of scripts show it.
OPEN_RUN = (
    f'open_run() {{ why="{job_entry.MISSING}"; [ -e "$1" ] || [ -L "$1" ] && '
    """why="is not a directory of this user's alone" && """
    '[ -d "$1" ] && [ -r "$1" ] && exec 9< "$1" && [ -O /proc/self/fd/9/ ] && '
    # 2700: a directory in one that hands its group down
    "case $(stat -Lc %a /proc/self/fd/9) in 700|?700) ;; *) false;; esac && "
    # A link leads to a directory of another name.
    'case $(readlink /proc/self/fd/9) in */"${1##*/}") return;; esac; '
    f'echo "{job_entry.REFUSAL}$1 $why" >&2; exit 1; }}'
)
GUARD = f'{OPEN_RUN}; open_run "$1" && exec bash "/proc/self/fd/9/$2"'


def make_script(
    job: Submission, profile: Profile, comments: Sequence[str], executor: str = ""
) -> str:
    """The script that a node runs, without options of sbatch. `comments` say how it is started;
    `executor` is submitit's, where the environment does not name it."""
    python = python_command(job.phase, profile)
    lines = [
        "#!/bin/bash",
        *(f"# {comment}" for comment in comments),
        "exec 9<&-",  # see GUARD
        *preparation_lines(job, profile),
        *([f"export SUBMITIT_EXECUTOR={executor}"] if executor else []),
        f"exec {start_command(python, job)}",
    ]
    return "\n".join(lines) + "\n"


def start_command(python: str, job: Submission) -> str:
    """The command that starts the node's part of the job."""
    run = shlex.quote(str(job.directory.run.root))
    return f"{python} -u -m {job_entry.__name__} {run} {_place(job)} {job.token or 'TOKEN'}"


def guarded_command(job: Submission) -> list[str]:
    """The command that runs the job's script where the scheduler has no copy of it."""
    script = job.directory.batch_script.relative_to(job.directory.run.root)
    return ["bash", "-c", GUARD, "bash", str(job.directory.run.root), str(script)]


def node_variables(phase: Phase, node_rank: int, name: str) -> dict[str, str]:
    """What tells a job which node of a phase it is, where Slurm does not."""
    return {
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_JOB_ID": f"{phase.name}.{node_rank}",
        node_job.RANK_VARIABLE: str(node_rank),
        node_job.NAME_VARIABLE: name,
    }


def nameless_script(phase: Phase, backend: Backend) -> str:
    """The phase's batch script without its name, token and paths: equal for phases whose jobs ask
    for the same and start Python in the same way."""
    directory = PhaseDir(Path("/run/phases/phase"))
    return backend.script(Submission(replace(phase, name="phase", base=""), directory))


def sbatch_options(script: str) -> tuple[str, ...]:
    return tuple(line for line in script.splitlines() if line.startswith("#SBATCH "))


def limit_minutes(phase: Phase, profile: Profile) -> int | None:
    """The time limit of a job whose profile sets none (submitit's own is five minutes). The default
    limit of a phase, which nobody chose, leaves it to the partition."""
    if "time" in phase.slurm or has_default_timeout(phase):
        return None
    setup_s = SETUP_S if profile.setup else 0.0
    # A phase that is asked to stop has all of its own time before.
    notice_s = profile.limits.stop_before_s + SIGNAL_EARLY_S if phase.resume.value else 0.0
    return math.ceil((float(phase.timeout_s.value) + WIND_UP_S + setup_s + notice_s) / 60)


def write_call(job: Submission) -> None:
    """Write what submitit runs in the job: `run_node` with the job's spec. Raises OSError, and
    Refused if the spec has become another submission's."""
    spec = read_json(job.directory.spec) or {}
    if spec.get("token") != job.token:
        raise Refused(f"{job.directory.spec} is another submission's, or cannot be read")
    job.directory.submitit.mkdir(parents=True, exist_ok=True, mode=0o700)
    DelayedSubmission(node_job.run_node, spec).dump(job.directory.call(job.token))


def _place(job: Submission) -> str:
    """The phase's directory, relative to the run's, as a word of the shell. A task of an array
    finds its own by a link."""
    place = job.directory.root.relative_to(job.directory.run.root)
    if not job.in_array:
        return shlex.quote(str(place))
    return f'{shlex.quote(str(place / job.directory.array.name))}/"$SLURM_ARRAY_TASK_ID"'


def preparation_lines(job: Submission, profile: Profile) -> list[str]:
    """What the script does before it starts Python."""
    run = shlex.quote(str(job.directory.run.root))
    failed = f"{run}/{_place(job)}/{job.directory.setup_failed.name}"
    setup = strict_setup_lines(setup_lines(job.phase, profile), failed)
    return [*setup, *environment_lines(job.phase)]


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


def strict_setup_lines(lines: Sequence[str], failed: str) -> list[str]:
    """The setup lines under `set -e`: the first one that fails is recorded in the file `failed`,
    a word of the shell, and ends the job.

    /etc/profile is sourced first: it defines `module`, and under cron no shell has read it.
    """
    if not lines:
        return []
    can_mark_lines = all(is_complete(line) for line in lines)
    script = [
        "[ -r /etc/profile ] && . /etc/profile",
        f"clustersmoke_failed={failed} clustersmoke_line=",
        # $BASH_COMMAND alone would name the last command inside `module`, which is a function.
        """trap 'printf "%s\\t%s\\n" "$?" "${clustersmoke_line:-$BASH_COMMAND}" """
        """> "$clustersmoke_failed"' EXIT""",
        "set -e",
    ]
    for line in lines:
        shown = shlex.quote(hide_assignments(line))  # reports quote it if the line fails
        script += [f"clustersmoke_line={shown}"] if can_mark_lines else []
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
