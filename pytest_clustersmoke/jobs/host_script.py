"""The shell scripts that run on a host: they start one node of a job, look at it and end it.

A node's process is identified by its pid, its start time and the host's boot: the kernel reuses
pids. Every process that it starts inherits a variable that identifies the node's job, so leftovers
are found in any session.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ..evidence.run_directory import PhaseDir
from .batch_script import OPEN_RUN

JOB_VARIABLE = "CLUSTERSMOKE_HOST_JOB"
KILL_AFTER_S = 60  # from TERM to KILL, at the time limit
# What `look` and `cancel` print about a node: it runs; it ended with a result; it ended without
# one; the host was rebooted; we ended it; a process that could not be killed.
RUNS, RESULT, GONE, REBOOTED, ENDED, LEFT = "runs", "result", "gone", "rebooted", "ended", "left"

FUNCTIONS = r"""
boot=$(cat /proc/sys/kernel/random/boot_id)
start_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }
state_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 1; }
is_same() { [ "$boot" = "$3" ] && [ "$(start_of "$1")" = "$2" ] && [ "$(state_of "$1")" != Z ]; }
marked() {
  for entry in $(grep -lsz "^CLUSTERSMOKE_HOST_JOB=$1\$" /proc/[0-9]*/environ); do
    pid=${entry#/proc/}
    pid=${pid%/environ}
    case $(state_of "$pid") in Z|X|'') ;; *) echo "$pid" ;; esac
  done
}
kill_marked() {
  for _ in 1 2 3 4 5; do
    pids=$(marked "$1")
    [ -z "$pids" ] && return
    kill -KILL $pids 2>/dev/null
    sleep 0.1
  done
  for pid in $(marked "$1"); do
    echo "left $1 $pid $(state_of "$pid") $(tr '\0' ' ' < "/proc/$pid/cmdline" | head -c 80)"
  done
}
start() { # run, process and submitit-folder below it, time-limit tag log command
  umask 077
  open_run "$1"
  process=/proc/self/fd/9/$2 logs=/proc/self/fd/9/$3 limit=$4 tag=$5 log=$6
  shift 6
  if why=$(mkdir "$(dirname "$process")" 2>&1); then
    cd "$logs" || exit
    export CLUSTERSMOKE_HOST_JOB="$tag"
    setsid timeout --foreground -k 60 "$limit" "$@" \
      < /dev/null >> "${log}_0_log.out" 2>> "${log}_0_log.err" 9<&- &
    pid=$!
    echo "$pid $(start_of "$pid") $boot" > "$process.new"
    mv "$process.new" "$process"
  fi
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ -e "$process" ] && break
    sleep 0.2
  done
  [ -e "$process" ] || echo "$why"
  echo "started $tag $(cat "$process" 2>/dev/null)"
}
look() { # result tag pid start boot
  if is_same "$3" "$4" "$5"; then echo "runs $2"; return; fi
  kill_marked "$2"
  if ls "$1" >/dev/null 2>&1; then echo "result $2"
  elif [ "$boot" != "$5" ]; then echo "rebooted $2"
  else echo "gone $2"
  fi
}
cancel() { # grace tag pid start boot
  if [ -n "$3" ] && is_same "$3" "$4" "$5"; then
    kill -TERM "$3"
    waits=$1
    while [ "$waits" -gt 0 ] && is_same "$3" "$4" "$5"; do
      sleep 0.1
      waits=$((waits - 1))
    done
  fi
  kill_marked "$2"
  [ -z "$(marked "$2")" ] && echo "ended $2"
}
"""


TAG = re.compile(r"([^@]+)/(\d{1,5})@(.+)", re.ASCII)


@dataclass(frozen=True)
class NodeTag:
    """What identifies a node's processes on its host: `job`, RUN/PHASE, the node and the host."""

    job: str
    node_rank: int
    host: str

    def __str__(self) -> str:
        return f"{self.job}/{self.node_rank}@{self.host}"

    @classmethod
    def parse(cls, text: str) -> NodeTag | None:
        match = TAG.fullmatch(text)
        return cls(match[1], int(match[2]), match[3]) if match else None


@dataclass(frozen=True)
class HostProcess:
    """A node's process on its host: pid, start time in clock ticks since boot, and the boot."""

    pid: str = ""
    start: str = ""
    boot: str = ""

    def __str__(self) -> str:
        return f"{self.pid}@{self.start}"


@dataclass(frozen=True)
class HostAnswer:
    """One line that a script printed: the kind of answer, the tag of its node, and further
    fields."""

    what: str
    tag: str
    fields: tuple[str, ...]

    @property
    def process(self) -> HostProcess | None:
        """The process in an answer `started`; None if it names none."""
        is_one = len(self.fields) == 3 and all(field.isdigit() for field in self.fields[:2])
        return HostProcess(*self.fields) if self.what == "started" and is_one else None


def start_call(
    directory: PhaseDir,
    node_rank: int,
    limit_s: float,
    tag: str,
    log: str,
    command: Sequence[str],
) -> str:
    """Start the node, unless that was done before; `started TAG PID START BOOT`. `log`: the start
    of the names of its logs."""
    run = directory.run.root
    files = (directory.node_process(node_rank), directory.submitit)
    below = (file.relative_to(run) for file in files)
    return _call("start", run, *below, f"{limit_s:.0f}", tag, log, *command)


def look_call(directory: PhaseDir, node_rank: int, tag: str, process: HostProcess) -> str:
    """Whether the node still runs, in whichever attempt. Once it does not, whatever is left of it
    is ended."""
    result = directory.newest.node_result(node_rank)
    return _call("look", result, tag, process.pid, process.start, process.boot)


def cancel_call(grace_s: float, tag: str, process: HostProcess | None) -> str:
    """End the node: TERM to exactly its process, and after a while KILL to all that is left."""
    known = process or HostProcess()
    tenths = round(grace_s * 10)
    return _call("cancel", tenths, tag, known.pid, known.start, known.boot)


def make_script(calls: list[str]) -> str:
    return "\n".join([OPEN_RUN, FUNCTIONS, *calls])


def parse_answers(lines: list[str]) -> list[HostAnswer]:
    """The answers among the lines that a script printed; other lines are the shell's errors."""
    answers = []
    for line in lines:
        what, *fields = line.split()[:8] or [""]
        known = (RUNS, RESULT, GONE, REBOOTED, ENDED, LEFT, "started")
        if what in known and fields:
            answers.append(HostAnswer(what, fields[0], tuple(fields[1:])))
    return answers


def find_error(lines: list[str]) -> str:
    """The last line that a script printed and that is no answer; empty if there is none."""
    return next((line for line in reversed(lines) if line and not parse_answers([line])), "")


def _call(name: str, *arguments: object) -> str:
    """Each in a subshell, so that one that fails does not end the others."""
    return f"( {shlex.join([name, *map(str, arguments)])} )"
