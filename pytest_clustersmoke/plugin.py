"""The pytest plugin: options, markers, collection, the `phase` fixture. It parses and delegates.

Plain pytest must not get slower, so modules that only a run needs are imported when it starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .config.marker import SET_KEYS
from .session.items import (
    MARKERS,
    PhaseClass,
    PhaseSweep,
    make_collector,
    phase_class,
    suite_of,
)
from .session.selection import ItemSelection

if TYPE_CHECKING:
    from .criteria.phase_criteria import PhaseView

UNSET: tuple[object, ...] = (None, False, [])  # options that were not given
LIFETIME_OPTIONS = ("--cluster-detach", "--cluster-attach", "--cluster-reap")
MAX_TRACED_STEPS = 50  # a step of the tiny LoRA model takes 1.1 MB before compression


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clustersmoke", "acceptance tests for GPU clusters")
    group.addoption(
        "--cluster", metavar="NAME", help="run phases on this cluster, by its name in cluster.yaml"
    )
    group.addoption(
        "--cluster-config",
        metavar="PATH",
        help="path of the cluster file (default: ROOTDIR/cluster.yaml)",
    )
    group.addoption(
        "--cluster-list", action="store_true", help="list the clusters and their phases, then exit"
    )
    group.addoption(
        "--cluster-dry-run",
        action="store_true",
        help="print each phase's batch script, environment and launcher's command; submit nothing",
    )
    group.addoption(
        "--cluster-set",
        action="append",
        default=[],
        metavar="PHASE.KEY=VALUE",
        help=f"override one value of a phase: {', '.join(SET_KEYS[:-1])} or {SET_KEYS[-1]} (may be "
        "repeated)",
    )
    group.addoption(
        "--cluster-prove",
        action="store_true",
        help="prove the gates: stage every fault that this cluster supports, in small phases; each "
        "must turn its criterion red with the right finding",
    )
    _add_trace_options(group)
    _add_screen_options(group)
    _add_isolation_options(group)
    group.addoption(
        "--cluster-max-jobs",
        type=_parse_count,
        metavar="N",
        help="maximum number of jobs at a time (default: `limits.max_jobs` of the cluster)",
    )
    group.addoption(
        "--cluster-wait",
        type=_parse_wait,
        metavar="SECONDS",
        help="how long a job may wait in the queue (default: `limits.queue_wait_s` of the "
        "cluster); 0: one scheduling cycle of 60 s, or not at all if Slurm expects a later start",
    )
    group.addoption(
        "--cluster-here",
        action="store_true",
        help="run phases as steps of the Slurm allocation in which pytest runs; submit no jobs",
    )
    group.addoption(
        "--cluster-exclusive",
        action="store_true",
        help="allow one run with this option per cluster at a time; exit with status 4 if another "
        "is active",
    )
    _add_lifetime_options(group)
    _add_node_options(group)
    group.addoption(
        "--cluster-report-dir",
        metavar="DIR",
        help="directory for the reports (default: ROOTDIR/reports)",
    )
    parser.addini("cluster", "the cluster to run phases on if --cluster is not given")


def _add_screen_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--cluster-screen",
        action="store_true",
        help="in place of the phases, check every idle node of the partition, each alone, within "
        "`limits.screen_s`",
    )
    group.addoption(
        "--cluster-nodes",
        metavar="HOSTLIST",
        help="screen these nodes only, such as gpu[0-7,12]",
    )
    group.addoption(
        "--cluster-screen-min",
        type=_parse_share,
        metavar="PERCENT",
        help="the share of the screened partition's nodes that must pass, such as 90%%; with fewer "
        "the verdict is INCONCLUSIVE",
    )


def _add_lifetime_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--cluster-detach",
        action="store_true",
        help="submit every phase, leave the jobs to the scheduler and exit with status 6; judge "
        "them later with --cluster-attach",
    )
    group.addoption(
        "--cluster-attach",
        metavar="RUN_ID",
        help="go on with a run that was detached or whose process has ended, by its id or "
        "`latest`: read the jobs that are done, wait for the others, submit what is missing",
    )
    group.addoption(
        "--cluster-takeover",
        action="store_true",
        help="attach a run even if its process seems to be alive; that one then stops",
    )
    group.addoption(
        "--cluster-reap",
        action="append",
        default=[],
        metavar="RUN_ID",
        help="end the jobs that are left of a run whose process has ended, or of `all` such runs, "
        "then exit (may be repeated)",
    )


def _add_node_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--cluster-avoid",
        action="store_true",
        help="keep phases off the nodes that `clustersmoke exclude` lists",
    )


def _add_trace_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--cluster-trace",
        action="append",
        default=[],
        metavar="PHASE",
        help="save a torch.profiler trace of some steps of this phase in its evidence; these steps "
        "are left out of every rate (may be repeated)",
    )
    group.addoption(
        "--cluster-trace-steps",
        type=_parse_steps,
        metavar="FIRST-LAST",
        help="the steps to trace, counted from 1 (default: the last 3 in a row without a proof)",
    )
    group.addoption(
        "--cluster-trace-ranks",
        type=_parse_ranks,
        metavar="RANKS",
        help="the ranks to trace, such as 0,3 or 0-3 (default: 0)",
    )


def _parse_share(text: str) -> float:
    import argparse
    import re
    from decimal import Decimal

    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?) ?%", text, re.ASCII)
    if not match or float(match[1]) > 100:
        raise argparse.ArgumentTypeError(f"expected a percentage such as 90%, got {text!r}")
    return float(Decimal(match[1]) / 100)  # 99.9 / 100 is not 0.999


def _add_isolation_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--cluster-isolate",
        action="store_true",
        help="after a multi-node phase failed, run its program on groups of its nodes until the "
        "bad node, link or switch is found",
    )
    group.addoption(
        "--cluster-isolate-budget",
        type=_parse_budget,
        metavar="TESTS:MINUTES",
        help="what --cluster-isolate may take for each phase (default: `limits.isolate` of the "
        "cluster, 64:60)",
    )


def _parse_budget(text: str) -> tuple[int, float]:
    import argparse
    import re

    match = re.fullmatch(r"([1-9]\d{0,5}):(\d{1,6}(?:\.\d{1,3})?)", text, re.ASCII)
    if not match or not float(match[2]):
        raise argparse.ArgumentTypeError(
            f"expected a number of tests and one of minutes, such as 64:60; got {text!r}"
        )
    return int(match[1]), float(match[2])


def _parse_count(text: str) -> int:
    import argparse

    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _parse_wait(text: str) -> str:
    import argparse
    import re

    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, 0 or more, got {text!r}")
    return text


def _parse_steps(text: str) -> tuple[int, int]:
    import argparse
    import re

    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last < first + MAX_TRACED_STEPS:
        raise argparse.ArgumentTypeError(
            f"expected a step or FIRST-LAST, at most {MAX_TRACED_STEPS} steps counted from 1, such "
            f"as 10-12; got {text!r}"
        )
    return first, last


def _parse_ranks(text: str) -> tuple[int, ...]:
    import argparse
    import re

    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        span = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not span:
            raise argparse.ArgumentTypeError(
                f"expected ranks, counted from 0, such as 0,3 or 0-3; got {text!r}"
            )
        ranks |= {*span}
    return tuple(sorted(ranks))


@pytest.hookimpl(tryfirst=True)  # before junitxml reads where its file goes
def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if config.getoption("--cluster") == "":  # an unset variable of a script, say
        raise pytest.UsageError(
            "--cluster: the name is empty; expected a profile of cluster.yaml (--cluster-list "
            "shows them)"
        )
    name = config.getoption("--cluster") or config.getini("cluster")
    without_cluster = [
        option
        for option in (
            "--cluster-dry-run",
            "--cluster-set",
            "--cluster-trace",
            "--cluster-max-jobs",
            "--cluster-wait",
            "--cluster-prove",
            "--cluster-screen",
            "--cluster-exclusive",
            "--cluster-here",
            "--cluster-avoid",
            "--cluster-isolate",
            "--cluster-isolate-budget",
            *LIFETIME_OPTIONS,
        )
        if not name and config.getoption(option) not in UNSET
    ]
    if without_cluster:
        raise pytest.UsageError(f"{without_cluster[0]} needs --cluster NAME")
    if config.getoption("--cluster-attach") == "":
        raise pytest.UsageError("--cluster-attach: the id of the run is empty")
    if config.getoption("--cluster-takeover") and not config.getoption("--cluster-attach"):
        raise pytest.UsageError("--cluster-takeover needs --cluster-attach RUN_ID")
    for option in ("--cluster-trace-steps", "--cluster-trace-ranks"):
        if config.getoption(option) is not None and not config.getoption("--cluster-trace"):
            raise pytest.UsageError(f"{option} needs --cluster-trace PHASE")
    for option in ("--cluster-nodes", "--cluster-screen-min"):
        if config.getoption(option) is not None and not config.getoption("--cluster-screen"):
            raise pytest.UsageError(f"{option} needs --cluster-screen")
    if config.getoption("--cluster-isolate-budget") and not config.getoption("--cluster-isolate"):
        raise pytest.UsageError("--cluster-isolate-budget needs --cluster-isolate")
    if name and not (config.getoption("--cluster-list") or config.getoption("--cluster-reap")):
        from .session.registration import register_suite

        register_suite(config, name)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if config.getoption("--cluster-list"):
        from .session.registration import print_clusters

        return print_clusters(config)
    if config.getoption("--cluster-reap"):
        from .session.registration import reap_runs

        return reap_runs(config, config.getoption("--cluster-reap"))
    return None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the directories of runs: pytest follows links, and those of an array lead back."""
    if not collection_path.name[:8].isdigit():
        return None
    from .evidence.run_directory import RUN_ID

    name = collection_path.name
    is_run = RUN_ID.fullmatch(name) and collection_path.joinpath("run.json").is_file()
    return True if is_run else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> PhaseClass | PhaseSweep | None:
    if isinstance(obj, type) and _has_phase(obj) and collector.istestclass(obj, name):
        return make_collector(collector, name, obj)
    return None


def _has_phase(cls: type) -> bool:
    """Whether a class or one of its bases has the marker. One mark alone need not be in a list."""
    own = (vars(each).get("pytestmark", ()) for each in cls.__mro__)
    lists = (marks if isinstance(marks, list | tuple) else [marks] for marks in own)
    return any(getattr(mark, "name", "") == "phase" for marks in lists for mark in marks)


def pytest_sessionstart(session: pytest.Session) -> None:
    # Registered after every plugin that selects, so that its hook is around theirs.
    session.config.pluginmanager.register(ItemSelection(session.config))


@pytest.fixture
def phase(request: pytest.FixtureRequest) -> PhaseView:
    """The finished phase of this class: its ranks, metrics and transports. Waits for its job."""
    suite, cls = suite_of(request.config), phase_class(request.node)
    if cls is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: the `phase` fixture is used outside a phase; use it only in "
            "tests of a class marked @pytest.mark.phase(...)"
        )
    view: PhaseView = suite.views.of(request.node)
    return view


def pytest_report_header(config: pytest.Config, start_path: Path) -> list[str]:
    suite: Any = suite_of(config)
    return suite.header() if suite is not None else []
