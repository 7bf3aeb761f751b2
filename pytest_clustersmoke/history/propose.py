"""`clustersmoke references propose`: bounds from what was measured, for a person to paste."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from .. import clean
from ..logs.command import print_lines
from ..subcommand import add
from ..telemetry import METRICS
from . import words

if TYPE_CHECKING:
    from .past import Level
    from .query import Group, Measured, PhaseRun

LEAST_PERCENT = 10  # as the bounds of the documents
MADS = 3.0
DIGITS = 4
SAID = ("torch", "cuda", "nccl", "driver")  # of the versions, in the source
INDENT = "    "  # of a profile's keys
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
DESCRIPTION = """\
Prints YAML for a cluster's `references`, from the good runs of the past: for each phase those with
the hardware, arguments and versions of its newest good run. Nothing is changed.
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
    from .past import WINDOW
    from .query import groups, phase_runs, setup_ids

    past: list[tuple[Group, list[PhaseRun]]] = []
    with words.history(asked.report_dir) as connection:
        for one in words.choose(groups(connection), asked.cluster, asked.phase):
            good = phase_runs(connection, one.cluster, one.phase, good=True, limit=1)
            if good:
                same = setup_ids(connection, good[0].setup)
                good = phase_runs(
                    connection, one.cluster, one.phase, good=True, setups=same, limit=WINDOW
                )
            past.append((one, good))
    print_lines(lines(asked.cluster, past))
    return 0


def lines(cluster: str, past: Sequence[tuple[Group, Sequence[PhaseRun]]]) -> Iterator[str]:
    """The YAML, as the profile's keys are indented. The runs are good, of one setup, the newest
    first."""
    from .past import MIN_RUNS

    yield f"{INDENT}# For the profile {_name(cluster)}, from the good runs in its history. A bound"
    yield f"{INDENT}# lies {MADS:.0f} scaled MADs from the median, and at least {LEAST_PERCENT} %."
    written: list[str] = []
    for group, runs in past:
        if len(runs) < MIN_RUNS:
            yield f"{INDENT}# left out: {_name(group.phase)}, {_too_few(group, runs)}"
            continue
        block = list(_phase(group.phase, runs))
        if block:
            written += block
        else:
            yield f"{INDENT}# left out: {_name(group.phase)}, no metric of which can have bounds"
    yield f"{INDENT}references:" if written else f"{INDENT}# no phase has enough"
    yield from written


def _too_few(group: Group, runs: Sequence[PhaseRun]) -> str:
    from .past import MIN_RUNS

    counted = f"{len(runs)} good run{'s' * (len(runs) != 1)}"
    more = f" ({group.good} on any)" if group.good > len(runs) else ""
    newest = " on the versions of the newest" if runs else ""
    return f"{counted}{newest}{more}; {MIN_RUNS} are needed"


def _phase(phase: str, runs: Sequence[PhaseRun]) -> Iterator[str]:
    """A phase's block; nothing where no metric can have bounds."""
    from .past import level

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
    yield f"{INDENT}  {_name(phase)}:  # on {clean.line(runs[0].setup.hardware)}"
    for line in [*written, *left_out]:
        yield f"{INDENT}    {line}"


def _source(runs: Sequence[PhaseRun]) -> str:
    """`median of 23 runs, 2026-10-01 to 2026-11-20, torch 2.5.1, nccl 2.21.5`."""
    from .table import moment

    first, last = (moment(run.begun)[:10] for run in (runs[-1], runs[0]))
    setup = runs[0].setup._asdict()
    versions = [f"{name} {setup[name]}" for name in SAID if setup[name]]
    return clean.line(", ".join([f"median of {len(runs)} runs", f"{first} to {last}", *versions]))


def _unfit(name: str, newest: Measured, here: Level | None) -> str:
    """Why a metric can have no reference; empty where it can."""
    if name not in METRICS or METRICS[name].unit != newest.unit:
        return f"this clustersmoke has no such metric in {newest.unit}"
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
    words = f"value: {_decimal(_value(here))}, {bound}, unit: {json.dumps(newest.unit)}"
    yield f"{_name(name)}: {{{words}, source: {json.dumps(source)}}}"


def _value(here: Level) -> float:
    return float(f"{here.median:.{DIGITS}g}")


def _percent(newest: Measured, here: Level) -> int:
    """The bound in percent of the rounded value."""
    sign = -1 if newest.higher_is_better else 1
    edge = here.median + sign * MADS * here.mad
    return max(LEAST_PERCENT, math.ceil(sign * (edge / _value(here) - 1) * 100))


def _spread(here: Level) -> str:
    return f"spread {here.mad / here.median * 100:.1f} % (scaled MAD)"


def _name(name: str) -> str:
    """A key of YAML, quoted where it is none by itself."""
    plain = _PLAIN.fullmatch(name) and name.lower() not in ("null", "true", "false")
    return name if plain else json.dumps(clean.line(name))


def _decimal(value: float) -> str:
    """Without an exponent, which YAML takes for text where it has no dot."""
    return f"{Decimal(str(value)):f}"
