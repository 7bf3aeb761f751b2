"""What users rely on does not change unnoticed: everything public is compared with contract.yaml.

The lists there are kept by hand. The current state is collected from outside where possible: from
help texts, from the files of a run of a small suite, from the shipped schemas, from the documents.
Only the imports below reach into the package.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

# Public import paths: these stay.
import pytest_clustersmoke
from pytest_clustersmoke import criteria, rank
from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.evidence.fingerprint import VERSIONS

# Internal import paths: when a module moves, its line here follows.
from pytest_clustersmoke.faults import FAULTS
from tests.support.finding_ids import finding_ids
from tests.support.harness import ROOT
from tests.support.shell import added_to_help, collected, run_command, run_suite
from tests.support.surface import (
    arguments,
    assigned,
    classes,
    keys_of,
    members,
    schema,
    subcommands,
    tables,
)

# What makes a finding: its first argument is the id.
FINDING_TYPES = {"Finding", "build_finding"}
PACKAGE = Path(pytest_clustersmoke.__file__).parent
REFERENCE = ROOT / "docs" / "reference"
EXIT_STATUSES, STAGED_FAULTS = REFERENCE / "exit-statuses.md", REFERENCE / "staged-faults.md"
BROKEN_LOG = "node0: [rank3]: torch.OutOfMemoryError: CUDA out of memory.\n"
NCCL_LOG = ROOT / "tests" / "evidence" / "nccl" / "data" / "46_v2307_shm_direct_single.log"

# Keys of JSON that name a criterion, a metric or a version.
NAMES = re.compile(r"(?<=\.)((?:criteria|metrics|versions)\.)\w+")

LISTS = Path(__file__).with_name("contract.yaml")
WHAT_TO_DO = """\
Users rely on missing items: restore them, or keep aliases. If one must go, say in CHANGELOG.md what
users do instead, and remove it from the list.
Users will rely on new items: add them to the list, in alphabetical order.
The list is `{kind}` in tests/contract.yaml."""

IMPORT = re.compile(r"^from (pytest_clustersmoke[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def promised() -> dict[str, list[str]]:
    """The lists of contract.yaml; an item of a group starts with the group's name."""
    lists = yaml.safe_load(LISTS.read_text())
    return {
        kind: [f"{group}{item}" for group, items in groups.items() for item in items]
        if isinstance(groups, dict)
        else groups
        for kind, groups in lists.items()
    }


CONTRACT = promised()


def compare(kind: str, listed: set[str], actual: set[str]) -> str:
    """What is missing, what is new, and what to do; empty if there is no difference."""
    if listed == actual:
        return ""
    missing, new = sorted(listed - actual), sorted(actual - listed)
    lines = [*(f"missing: {item}" for item in missing), *(f"new: {item}" for item in new)]
    return "\n".join(["contract.yaml and the code differ:", *lines, WHAT_TO_DO.format(kind=kind)])


def shipped(name: str) -> Path:
    """The one file of this name in the package."""
    (path,) = PACKAGE.rglob(name)
    return path


class Surface:
    """What users see today: a method for each list of contract.yaml."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # -- pytest ------------------------------------------------------------------------------------

    def options(self) -> Iterable[str]:
        return added_to_help("--help", r"^  (--\S+)", self._folder)

    def ini_options(self) -> Iterable[str]:
        return added_to_help("--help", r"^  (\w+ \([^)]+\)):", self._folder)

    def markers(self) -> Iterable[str]:
        return added_to_help("--markers", r"^@pytest\.mark\.(.+?): ", self._folder)

    def fixtures(self) -> Iterable[str]:
        return added_to_help("--fixtures", r"^(\w+)(?: \[\w+ scope\])? -- ", self._folder)

    # -- The command -------------------------------------------------------------------------------

    def commands(self) -> Iterator[str]:
        todo: list[tuple[str, ...]] = [()]
        while todo:
            words = todo.pop()
            text = run_command(*words, "--help")
            todo += [(*words, name) for name in subcommands(text)]
            yield from (
                " ".join(("clustersmoke", *words, argument)) for argument in arguments(text)
            )

    def exit_statuses(self) -> Iterator[str]:
        """The statuses in the documents; test_exit_statuses.py provokes each."""
        for title, head, rows in tables(EXIT_STATUSES.read_text()):
            for first, *cells in rows:
                if head[0] == "subcommand":
                    cells_by_head = zip(head[1:], cells, strict=True)
                    yield from (
                        f"{title} {first}: {status}" for status, cell in cells_by_head if cell
                    )
                else:
                    verdict = cells[0] if re.fullmatch("[A-Z ]+", cells[0]) else ""
                    yield f"{title}: {first} {verdict}".strip()

    def command_json(self) -> Iterator[str]:
        """The keys of what subcommands print as JSON."""
        log = self._folder / "broken.log"
        log.write_text(BROKEN_LOG)
        reports = ("--report-dir", str(self._run / "reports"))
        for words in (
            ("diagnose", str(log)),
            ("transports", str(NCCL_LOG)),
            ("history", *reports),
            ("compare", "latest", "latest", *reports),
            ("nodes", "--cluster", "one", *reports),
            ("summary", *reports),
        ):
            for key in keys_of(json.loads(run_command(*words, "--json"))):
                yield words[0] + NAMES.sub(r"\1*", key)
        asked = ("exclude", "--cluster", "one", "--format", "json", *reports)
        yield from (f"exclude{key}" for key in keys_of(json.loads(run_command(*asked))))
        head = run_command("history", "--csv", *reports).splitlines()[0]
        yield from (f"history --csv {name}" for name in head.split(","))

    # -- Python ------------------------------------------------------------------------------------

    def imports(self) -> Iterator[str]:
        """Imports in the documents, and listed imports that work."""
        for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
            for module, names in IMPORT.findall(page.read_text()):
                yield from (f"from {module} import {name.strip()}" for name in names.split(","))
        for line in CONTRACT["imports"]:
            with contextlib.suppress(ImportError):
                exec(line, {})
                yield line

    def rank_api(self) -> Iterator[str]:
        for name, cls in classes(rank).items():
            yield from {f"{name}.{member}" for member in (*members(cls), *assigned(cls))}

    def criteria_api(self) -> Iterator[str]:
        """The base classes of phases, whose tests name the cases of JUnit, and judges."""
        for module in (criteria.bandwidth, criteria.node_pairs):
            for name, function in inspect.getmembers(module, inspect.isfunction):
                if function.__module__ == module.__name__ and not name.startswith("_"):
                    parameters = ", ".join(inspect.signature(function).parameters)
                    yield f"{module.__name__.rpartition('.')[2]}.{name}({parameters})"
        for name, cls in classes(criteria).items():
            if cls is criteria.PhaseView:  # its own list is `phase_api`
                continue
            yield from (f"{name}.{member}" for member in members(cls))

    def phase_api(self) -> Iterable[str]:
        """What a criterion sees of its phase."""
        members: list[str] = json.loads((self._run / "members.json").read_text())
        return members

    # -- Names -------------------------------------------------------------------------------------

    def suite(self) -> Iterator[str]:
        return (name for name, *_ in self._collected)

    def phases(self) -> Iterator[str]:
        for _, phase, marker, marks in self._collected:
            yield from (f"{phase} @{mark}" for mark in marks)
            yield from (f"{phase} args.{name}" for name in marker["args"])

    def profiles(self) -> Iterable[str]:
        loaded = yaml.safe_load((ROOT / "cluster.yaml").read_text())
        return [*loaded["clusters"]]

    def findings(self) -> Iterable[str]:
        return finding_ids(PACKAGE, FINDING_TYPES)

    def signatures(self) -> Iterator[str]:
        loaded = yaml.safe_load(shipped("signatures.yaml").read_text())
        return (signature["id"] for signature in loaded["signatures"])

    def staged_faults(self) -> Iterator[str]:
        yield from (f"--cluster-prove {name}" for name in FAULTS)
        table = STAGED_FAULTS.read_text().split("\n## Every fault\n")[1]
        yield from (f"faults.md {name}" for name in re.findall(r"^\| `(\w+)`", table, re.MULTILINE))

    def metrics(self) -> Iterator[str]:
        for name, kind in METRICS.items():
            yield f"{name} {kind.unit}, {'higher' if kind.higher_is_better else 'lower'} is better"

    # -- Files -------------------------------------------------------------------------------------

    def cluster_yaml(self) -> Iterable[str]:
        return schema(shipped("cluster.schema.json"))

    def report_json(self) -> Iterable[str]:
        version = json.loads((self._report / "report.json").read_text())["schema"]
        return {f"schema = {version}", *schema(shipped("report.schema.json"))}

    def report_files(self) -> Iterator[str]:
        """The files of the report directory and of one run in it."""
        run = self._report.resolve()
        for path in [*run.parent.iterdir(), *run.iterdir()]:
            name = str(path.relative_to(run.parent)).replace(run.name, "<run_id>")
            yield name.replace("-one.", "-<cluster>.") + "/" * path.resolve().is_dir()

    def junit_xml(self) -> Iterator[str]:
        """Properties; all versions count, though each machine knows only some of them."""
        root = ElementTree.parse(self._report / "junit.xml").getroot()
        for place in ("suite", "case"):
            properties = root.iterfind(f".//test{place}/properties/property")
            names = {definition.attrib["name"] for definition in properties}
            yield from (f"{place} {name}" for name in names | {*VERSIONS})

    def metrics_prom(self) -> Iterator[str]:
        """Samples, with their labels."""
        for line in (self._report / "metrics.prom").read_text().splitlines():
            if match := re.match(r"(\w+)\{(.*)\} ", line):
                yield " ".join([match[1], *re.findall(r"(?:^|,)(\w+)=", match[2])])

    def history_db(self) -> Iterator[str]:
        path = self._run / "reports" / "history.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for pragma in ("application_id", "user_version"):
                yield f"{pragma} = {connection.execute(f'PRAGMA {pragma}').fetchone()[0]}"
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'"):
                rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
                yield from (f"{table}.{name} {kind}" for _, name, kind, *_ in rows)

    # -- Runs that several lists share -------------------------------------------------------------

    @cached_property
    def _run(self) -> Path:
        """The folder in which the small suite has run."""
        folder = self._folder / "suite"
        folder.mkdir(exist_ok=True)
        run_suite(folder)
        return folder

    @property
    def _report(self) -> Path:
        return self._run / "reports" / "latest"

    @cached_property
    def _collected(self) -> list[tuple[str, str, dict[str, Any], list[str]]]:
        return [*collected("smoke_tests")]


@pytest.fixture(scope="module")
def actual(tmp_path_factory: pytest.TempPathFactory) -> Surface:
    return Surface(tmp_path_factory.mktemp("contract"))


@pytest.mark.parametrize("kind", CONTRACT)
def test_list_is_what_users_see(kind: str, actual: Surface) -> None:
    """Everything on the list exists, and everything that exists is on the list."""
    difference = compare(kind, {*CONTRACT[kind]}, {*getattr(actual, kind)()})
    if difference:
        pytest.fail(difference, pytrace=False)


@pytest.mark.parametrize("kind", CONTRACT)
def test_list_is_sorted_and_has_nothing_twice(kind: str) -> None:
    """A list is not empty, and each item has one place in it."""
    assert CONTRACT[kind] == sorted({*CONTRACT[kind]}) != []


def test_every_list_is_compared() -> None:
    """Each list has a method that collects its items, and each method has a list."""
    assert {*CONTRACT} == {name for name in vars(Surface) if not name.startswith("_")}


def test_difference_says_what_to_do() -> None:
    """Missing and new items are named, with what to do about each; the others are not."""
    words = compare("options", {"--kept", "--gone"}, {"--kept", "--added"})
    assert "missing: --gone\nnew: --added\n" in words and "--kept" not in words
    assert "alias" in words and "CHANGELOG.md" in words and "`options`" in words
    assert compare("options", {"--kept"}, {"--kept"}) == ""
