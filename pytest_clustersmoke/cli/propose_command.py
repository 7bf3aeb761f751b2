"""`clustersmoke references propose`: bounds from past runs, for a person to paste."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from sqlite3 import Connection

from ..config.metrics import METRICS
from ..evidence.history.history_query import (
    PhaseCount,
    PhaseRun,
    StoredMetric,
    find_newest_setup,
    read_phase_runs,
)
from ..evidence.history.outlier_judge import (
    FAIL_SPREADS,
    FAILING_UNITS,
    MIN_RUNS,
    WINDOW,
    PastLevel,
    measure_level,
)
from ..evidence.history.setup_changes import describe_setup_changes
from ..text import plural, sanitize_line
from . import history_arguments as arguments
from .subcommand import add, print_lines
from .tables import moment

LEAST_PERCENT = 10  # as in the documented bounds
DIGITS = 4
IN_SOURCE = ("torch", "cuda", "nccl", "driver")  # the versions named in a reference's source
INDENT = "    "  # of the keys of a profile
DESCRIPTION = """\
Prints YAML for a cluster's `references`, from its good past runs. Each phase's references come from
the runs with the hardware, arguments and versions of its newest good run; if these are too few,
from the newest setup with enough runs. First writes the reports of runs whose pytest process was
killed before it could do so; changes nothing else.
"""
EXAMPLES = """\
examples:
  clustersmoke references propose --cluster gilbreth
  clustersmoke references propose --cluster gilbreth --phase zero1_4node

exit status: 0 done, 2 unusable history or arguments
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    propose = add(subparsers, "propose", "print YAML for cluster.yaml", DESCRIPTION, EXAMPLES)
    propose.add_argument("--cluster", metavar="C", required=True, help="the cluster (required)")
    propose.add_argument("--phase", metavar="P", help="only this phase")
    arguments.add_report_dir(propose)
    propose.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    with arguments.open_history(parsed.report_dir) as connection:
        counts = arguments.choose_phases(connection, parsed.cluster, parsed.phase)
        past = [_good_runs(connection, count) for count in counts]
    print_lines(_lines(parsed.cluster, past))
    return 0


@dataclass(frozen=True)
class GoodRuns:
    """The good runs of a phase under one setup, newest first. If the phase has since run under a
    newer setup that has too few good runs, `later` is the newest of those."""

    count: PhaseCount
    runs: Sequence[PhaseRun]
    later: PhaseRun | None = None


def _good_runs(connection: Connection, count: PhaseCount) -> GoodRuns:
    of = (connection, count.cluster, count.phase)
    newest = read_phase_runs(*of, good=True, limit=1)
    if not newest:
        return GoodRuns(count, [])
    runs = read_phase_runs(*of, good=True, setup=newest[0].setup, limit=WINDOW)
    setup = find_newest_setup(*of, MIN_RUNS) if len(runs) < MIN_RUNS else None
    if setup is None:
        return GoodRuns(count, runs)
    return GoodRuns(count, read_phase_runs(*of, good=True, setup=setup, limit=WINDOW), newest[0])


def _lines(cluster: str, past: Sequence[GoodRuns]) -> Iterator[str]:
    """The YAML, indented like the keys of a profile."""
    far = f"{FAIL_SPREADS:.0f} spreads (wider for few runs)"
    yield f"{INDENT}# For the profile {_name(cluster)}, from the good runs in its history."
    yield f"{INDENT}# Bounds are {far} from the median, and at least {LEAST_PERCENT} %."
    written: list[str] = []
    for phase in past:
        block, why = _block(phase)
        written += block
        if not block:
            yield f"{INDENT}# left out: {_name(phase.count.phase)}, {why}"
    yield f"{INDENT}references:" if written else f"{INDENT}# no phase has enough good runs"
    yield from written


def _block(past: GoodRuns) -> tuple[list[str], str]:
    """A phase's references, or the reason why it can have none."""
    runs = past.runs
    if len(runs) < MIN_RUNS:
        return [], _too_few(past.count, runs)
    written: list[str] = []
    left_out: list[str] = []
    for name, newest in runs[0].metrics.items():
        values = [(run, run.value(name, newest.unit)) for run in runs]
        have = [(run, value) for run, value in values if value is not None]
        here = measure_level(value for _, value in have)
        why = _unfit(name, newest, here)
        if here is None or why:
            left_out.append(f"# {_name(name)} is left out: {why}")
        else:
            written += _reference(name, newest, here, _source([run for run, _ in have]))
    if not written:
        return [], "none of its metrics can have bounds"
    title = f"{INDENT}  {_name(past.count.phase)}:  # on {sanitize_line(runs[0].setup.hardware)}"
    lines = [*_note_newer_setup(past), *written, *left_out]
    return [title, *(f"{INDENT}    {line}" for line in lines)], ""


def _too_few(count: PhaseCount, runs: Sequence[PhaseRun]) -> str:
    good = f"{plural(len(runs), 'good run')}"
    more = f" ({count.good} in total)" if count.good > len(runs) else ""
    newest = " with the newest setup" if runs else ""
    return f"{good}{newest}{more}; {MIN_RUNS} are needed"


def _note_newer_setup(past: GoodRuns) -> Iterator[str]:
    """A comment on newer runs of another setup, if there are any, with the differences."""
    if past.later is not None:
        new = past.later
        changes = describe_setup_changes(
            past.runs[0], new.setup.hardware, new.setup.shape, new.versions
        )
        why = f"; changed since: {', '.join(changes)}" if changes else ""
        day = moment(new.begun)[:10]
        yield sanitize_line(
            f"# not from the newest good run ({day}): fewer than {MIN_RUNS} like it{why}"
        )


def _source(runs: Sequence[PhaseRun]) -> str:
    """`median of 23 runs, 2026-10-01 to 2026-11-20, torch 2.5.1, nccl 2.21.5`."""
    first, last = (moment(run.begun)[:10] for run in (runs[-1], runs[0]))
    setup = runs[0].setup._asdict()
    versions = [f"{name} {setup[name]}" for name in IN_SOURCE if setup[name]]
    return sanitize_line(
        ", ".join([f"median of {len(runs)} runs", f"{first} to {last}", *versions])
    )


def _unfit(name: str, newest: StoredMetric, here: PastLevel | None) -> str:
    """Why a metric can have no reference; empty if it can."""
    if name not in METRICS or METRICS[name].unit != newest.unit:
        return f"this version has no such metric in {newest.unit}"
    if newest.unit not in FAILING_UNITS:  # a healthy night would miss it by chance
        return "times, latencies and losses vary too much; the history check warns of them"
    if here is None:
        return "too few of these runs have it"
    if here.median <= 0:
        return f"its median is {here.median:g}"
    if newest.higher_is_better and _percent(newest, here) >= 100:
        return f"too noisy for a bound, {_spread(here)}"
    return ""


def _reference(name: str, newest: StoredMetric, here: PastLevel, source: str) -> Iterator[str]:
    """A comment with the measured values, and the reference."""
    yield f"# {here.runs} runs, median {here.median:g} {newest.unit}, {_spread(here)}"
    side, sign = ("lower", "-") if newest.higher_is_better else ("upper", "+")
    bound = {side: f"{sign}{_percent(newest, here)} %"}
    reference = {"value": _value(here), **bound, "unit": newest.unit, "source": source}
    yield f"{name}: {_yaml(reference)}"


def _value(here: PastLevel) -> float:
    return float(f"{here.median:.{DIGITS}g}")


def _percent(newest: StoredMetric, here: PastLevel) -> int:
    """The bound as a percentage of the rounded value."""
    sign = -1 if newest.higher_is_better else 1
    edge = here.median + sign * here.off(FAIL_SPREADS)
    return max(LEAST_PERCENT, math.ceil(sign * (edge / _value(here) - 1) * 100))


def _spread(here: PastLevel) -> str:
    return f"spread {here.spread / here.median * 100:.1f} %"


def _name(name: str) -> str:
    return _yaml(sanitize_line(name))


def _yaml(value: object) -> str:
    """YAML on one line, quoted if needed."""
    import yaml

    wide = float("inf")
    written: str = yaml.safe_dump(
        [value], default_flow_style=True, width=wide, allow_unicode=True, sort_keys=False
    )
    return written.strip()[1:-1]
