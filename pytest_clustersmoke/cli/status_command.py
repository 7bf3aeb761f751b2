"""`clustersmoke status`: the runs that are under way."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..evidence.run_directory import RunDir
from ..evidence.telemetry import to_json_value
from ..text import Problem, UsageProblems, plural, sanitize_line, shorten_lines
from .subcommand import TextOutput, add, format_json, print_lines
from .tables import NO_WIDTH

DESCRIPTION = """\
Shows the runs of this user that are under way, from any shell that sees their shared_dir: phases,
queue, step n of N, and when they should end, by the runs before. Reads what the runs wrote, asks no
scheduler, and touches no job.
"""
EXAMPLES = """\
examples:
  clustersmoke status                                   all clusters of ./cluster.yaml
  clustersmoke status --cluster gilbreth --json
  clustersmoke status --shared-dir /scratch/me/clustersmoke-runs

exit status: 0 printed, also if no run is under way, 2 unusable cluster.yaml, directory or arguments
"""
MOST_LEFT_OUT = 4


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    status = add(subparsers, "status", "show the runs under way", DESCRIPTION, EXAMPLES)
    status.add_argument("--cluster", metavar="C", help="only runs on this cluster")
    where = status.add_mutually_exclusive_group()
    where.add_argument(
        "--cluster-config", metavar="PATH", help="the cluster file (default: cluster.yaml)"
    )
    where.add_argument(
        "--shared-dir", type=Path, metavar="DIR", help="look here; no cluster.yaml is needed"
    )
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    directories = _list_directories(parsed)
    found, left_out = _read_runs(directories, parsed.cluster)
    if parsed.json:
        runs = [_json_run(status) for status in found]
        print_lines(format_json({"runs": runs, "left_out": left_out}))
        return 0
    for line in shorten_lines(left_out, MOST_LEFT_OUT):
        print(line, file=sys.stderr)
    if not found:
        on = "" if parsed.cluster is None else f" on {sanitize_line(parsed.cluster)}"
        print_lines([f"no run is under way{on} below {', '.join(map(str, directories))}"])
        return 0
    lines = [line for status in found for line in (*_text_lines(status, time.time()), "")]
    print_lines(lines[:-1])
    return 0


def _list_directories(parsed: argparse.Namespace) -> list[Path]:
    """The shared directories to look in. Raises UsageProblems, also if no profile can be used."""
    if parsed.shared_dir is not None:
        if not parsed.shared_dir.is_dir():
            what = f"{parsed.shared_dir} is not a directory"
            raise UsageProblems([Problem(what, "--shared-dir", "the `shared_dir` of a cluster")])
        return [parsed.shared_dir]
    from ..config.cluster_file import find_config, load_cluster_file

    path = find_config(Path.cwd(), parsed.cluster_config)
    file = load_cluster_file(path, os.environ)
    directories, problems = dict[Path, None](), list[Problem]()
    for name in file.names if parsed.cluster is None else [parsed.cluster]:
        try:
            directories[file.profile(name).shared_dir] = None
        except UsageProblems as unusable:
            problems += unusable.problems
    if not directories:
        raise UsageProblems(problems)
    for problem in problems:
        print(f"clustersmoke: {problem}", file=sys.stderr)
    return list(directories)


def _read_runs(directories: Iterable[Path], cluster: str | None) -> tuple[list[Any], list[str]]:
    """The runs under way, and a line on each directory that cannot be read."""
    from ..session.run_status import list_open_runs

    found, left_out = [], []
    for directory in directories:
        try:
            for run, why in list_open_runs(directory):
                status, why = (None, why) if why else _read_run(run)
                if status is None:
                    left_out.append(f"run {run.run_id} is left out: {why}")
                elif cluster in (None, status.cluster):
                    found.append(status)
        except FileNotFoundError:  # nothing ran there yet
            continue
        except OSError as error:
            left_out.append(f"{directory} cannot be read: {error.strerror or error}")
    return found, left_out


def _read_run(run: RunDir) -> tuple[Any | None, str]:
    """The status of a run; None, and why, if its files cannot be looked at."""
    from ..session.run_status import read_status

    try:
        return read_status(run), ""
    except OSError as error:
        return None, sanitize_line(f"{error.strerror or error}")


def _text_lines(status: Any, now: float) -> Iterator[str]:
    """Who watches the run, then a row for each phase, as in pytest's own view."""
    from ..session.live.rows import ansi, rows

    on = f"run {status.run_id} on {status.cluster}"
    selected = f", {status.selection}" if status.selection else ""
    yield f"{on}{selected}: {_describe_watcher(status)}"
    if status.screen:
        yield f"screen of {status.screen}, {plural(status.answered, 'node')} answered"
        return
    if not status.states:
        yield "no phase is submitted yet"
        return
    output = TextOutput.of(sys.stdout)
    if status.is_over:
        yield f"{plural(len(status.states), 'phase')} done; the report is not written yet"
        return
    width, height = output.width or NO_WIDTH, len(status.states) + 1
    lines = rows("phases", status.states, status.marks, now, width, height, status.usual)
    yield from ansi(lines, output.colours)


def _describe_watcher(status: Any) -> str:
    attach = f"pytest --cluster {status.cluster} --cluster-attach {status.run_id}"
    if status.controller:
        return str(status.controller)
    if status.detached:
        return f"detached; {attach} judges it"
    return f"no process watches it; {attach} goes on with it"


def _json_run(status: Any) -> dict[str, Any]:
    usual = status.usual
    return {
        "run_id": status.run_id,
        "cluster": status.cluster,
        "selection": status.selection,
        "controller": status.controller,
        "detached": status.detached,
        "screen": status.screen or None,
        "answered": status.answered if status.screen else None,
        "begun": usual.begun,
        "expected_end": usual.end,
        "expected_from_runs": usual.runs,
        "phases": [_json_phase(status, index) for index in range(len(status.states))],
    }


def _json_phase(status: Any, index: int) -> dict[str, Any]:
    from ..session.live.rows import expected_end

    state = status.states[index]
    mark = status.marks.get(state.phase)
    names = ("phase", "state", "outcome", "job_id", "submitted", "started", "run_s")
    progress = ("stage", "step", "steps", "loss", "steps_per_s")
    return {
        **{name: getattr(state, name) for name in names},
        **{name: to_json_value(getattr(mark, name)) if mark else None for name in progress},
        "expected_end": expected_end(state, status.usual),
    }
