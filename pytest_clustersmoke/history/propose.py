"""`clustersmoke references propose`: bounds from what was measured, for a person to paste."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from .. import clean
from ..subcommand import add, print_lines
from ..telemetry import METRICS
from . import words

if TYPE_CHECKING:
    from sqlite3 import Connection

    from .past import Level
    from .query import Group, Measured, PhaseRun

LEAST_PERCENT = 10  # as the bounds of the documents
DIGITS = 4
SAID = ("torch", "cuda", "nccl", "driver")  # of the versions, in the source
INDENT = "    "  # of a profile's keys
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
DESCRIPTION = """\
Prints YAML for a cluster's `references`, from the good runs of the past: for each phase those with
the hardware, arguments and versions of its newest good run; where these are too few, of the newest
that has enough. Runs that were killed and never reported are reported first; else nothing is
changed.
"""
EXAMPLES = """\
examples:
  clustersmoke references propose --cluster gilbreth
  clustersmoke references propose --cluster gilbreth --phase zero1_4node

exit status: 0 done, 2 the history or the words cannot be used
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    references = subparsers.add_parser("references", help="references from past runs")
    commands = references.add_subparsers(metavar="COMMAND", required=True)
    propose = add(commands, "propose", "YAML for cluster.yaml", DESCRIPTION, EXAMPLES)
    propose.add_argument("--cluster", metavar="C", required=True, help="the cluster")
    propose.add_argument("--phase", metavar="P", help="of one phase")
    words.add_report_dir(propose)
    propose.set_defaults(run=_run)


def _run(asked: argparse.Namespace) -> int:
    from .query import groups

    with words.history(asked.report_dir) as connection:
        chosen = words.choose(groups(connection), asked.cluster, asked.phase)
        past = [_past(connection, one) for one in chosen]
    print_lines(lines(asked.cluster, past))
    return 0


@dataclass(frozen=True)
class Past:
    """The good runs of one setup of a phase, the newest first; `later` is the phase's newest good
    run where that is of another setup, of which there are too few."""

    group: Group
    runs: Sequence[PhaseRun]
    later: PhaseRun | None = None


def _past(connection: Connection, group: Group) -> Past:
    from .past import MIN_RUNS, WINDOW
    from .query import newest_setup, phase_runs, setup_ids

    def good(setups: list[int]) -> list[PhaseRun]:
        of = (connection, group.cluster, group.phase)
        return phase_runs(*of, good=True, setups=setups, limit=WINDOW)

    newest = phase_runs(connection, group.cluster, group.phase, good=True, limit=1)
    if not newest:
        return Past(group, [])
    runs = good(setup_ids(connection, newest[0].setup))
    if len(runs) < MIN_RUNS:
        setup = newest_setup(connection, group.cluster, group.phase, MIN_RUNS)
        before = [] if setup is None else good([setup])
        if len(before) >= MIN_RUNS:
            return Past(group, before, newest[0])
    return Past(group, runs)


def lines(cluster: str, past: Sequence[Past]) -> Iterator[str]:
    """The YAML, as the profile's keys are indented."""
    from .past import FAIL_SPREADS, MIN_RUNS

    far = f"{FAIL_SPREADS:.0f} spreads, widened for few runs"
    yield f"{INDENT}# For the profile {_name(cluster)}, from the good runs in its history."
    yield f"{INDENT}# Bounds lie {far}, from the median, and at least {LEAST_PERCENT} %."
    written: list[str] = []
    for one in past:
        name = _name(one.group.phase)
        if len(one.runs) < MIN_RUNS:
            yield f"{INDENT}# left out: {name}, {_too_few(one.group, one.runs)}"
            continue
        block = list(_phase(one))
        if block:
            written += block
        else:
            yield f"{INDENT}# left out: {name}, no metric of which can have bounds"
    yield f"{INDENT}references:" if written else f"{INDENT}# no phase has enough"
    yield from written


def _too_few(group: Group, runs: Sequence[PhaseRun]) -> str:
    from .past import MIN_RUNS

    counted = f"{len(runs)} good run{'s' * (len(runs) != 1)}"
    more = f" ({group.good} on any)" if group.good > len(runs) else ""
    newest = " on the versions of the newest" if runs else ""
    return f"{counted}{newest}{more}; {MIN_RUNS} are needed"


def _phase(past: Past) -> Iterator[str]:
    """A phase's block; nothing where no metric can have bounds."""
    from .past import level

    runs = past.runs
    source = _source(runs)
    written: list[str] = []
    left_out: list[str] = []
    for name, newest in runs[0].metrics.items():
        here = level(value for run in runs if (value := run.value(name, newest.unit)) is not None)
        why = _unfit(name, newest, here)
        if here is None or why:
            left_out.append(f"# {_name(name)} is left out: {why}")
        else:
            written += _reference(name, newest, here, source)
    if not written:
        return
    yield f"{INDENT}  {_name(past.group.phase)}:  # on {clean.line(runs[0].setup.hardware)}"
    for line in [*_passed_over(past), *written, *left_out]:
        yield f"{INDENT}    {line}"


def _passed_over(past: Past) -> Iterator[str]:
    """That there are newer runs on something else, and what of it differs."""
    from . import changes
    from .past import MIN_RUNS
    from .table import moment

    if past.later is not None:
        new = past.later
        what = changes.setup(past.runs[0], new.setup.hardware, new.setup.shape, new.versions)
        why = f"; others since: {', '.join(what)}" if what else ""
        day = moment(new.begun)[:10]
        yield clean.line(f"# not of the newest good run, {day}: fewer than {MIN_RUNS} like it{why}")


def _source(runs: Sequence[PhaseRun]) -> str:
    """`median of 23 runs, 2026-10-01 to 2026-11-20, torch 2.5.1, nccl 2.21.5`."""
    from .table import moment

    first, last = (moment(run.begun)[:10] for run in (runs[-1], runs[0]))
    setup = runs[0].setup._asdict()
    versions = [f"{name} {setup[name]}" for name in SAID if setup[name]]
    return clean.line(", ".join([f"median of {len(runs)} runs", f"{first} to {last}", *versions]))


def _unfit(name: str, newest: Measured, here: Level | None) -> str:
    """Why a metric can have no reference; empty where it can."""
    from .past import FAILING_UNITS

    if name not in METRICS or METRICS[name].unit != newest.unit:
        return f"this clustersmoke has no such metric in {newest.unit}"
    if newest.unit not in FAILING_UNITS:  # a healthy night would miss it by chance
        return "times, latencies and losses scatter too far; the history warns of them"
    if here is None:
        return "too few of these runs have it"
    if here.median <= 0:
        return f"its median is {here.median:g}"
    if newest.higher_is_better and _percent(newest, here) >= 100:
        return f"too noisy for a bound, {_spread(here)}"
    return ""


def _reference(name: str, newest: Measured, here: Level, source: str) -> Iterator[str]:
    """A comment with what was measured, and the reference."""
    yield f"# {here.runs} runs, median {here.median:g} {newest.unit}, {_spread(here)}"
    percent = _percent(newest, here)
    bound = f"lower: -{percent} %" if newest.higher_is_better else f"upper: +{percent} %"
    words = f"value: {_decimal(_value(here))}, {bound}, unit: {_quoted(newest.unit)}"
    yield f"{_name(name)}: {{{words}, source: {_quoted(source)}}}"


def _value(here: Level) -> float:
    return float(f"{here.median:.{DIGITS}g}")


def _percent(newest: Measured, here: Level) -> int:
    """The bound in percent of the rounded value."""
    from .past import FAIL_SPREADS

    sign = -1 if newest.higher_is_better else 1
    edge = here.median + sign * here.off(FAIL_SPREADS)
    return max(LEAST_PERCENT, math.ceil(sign * (edge / _value(here) - 1) * 100))


def _spread(here: Level) -> str:
    return f"spread {here.spread / here.median * 100:.1f} %"


def _name(name: str) -> str:
    """A key of YAML, quoted where it is none by itself."""
    plain = _PLAIN.fullmatch(name) and name.lower() not in ("null", "true", "false")
    return name if plain else _quoted(clean.line(name))


def _quoted(text: str) -> str:
    """As YAML reads it, which takes no halves of UTF-16 pairs."""
    return json.dumps(text, ensure_ascii=False)


def _decimal(value: float) -> str:
    """Without an exponent, which YAML takes for text where it has no dot."""
    return f"{Decimal(str(value)):f}"
