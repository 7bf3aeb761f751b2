"""reports/index.html: what it says of the runs of each cluster, and what it takes to write it."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.history import history_schema, history_store
from pytest_clustersmoke.evidence.history.history_database import open_for_reading
from pytest_clustersmoke.evidence.history.newest_runs import ListedPhase, read_newest_runs
from pytest_clustersmoke.report.node_evidence import observe_nodes
from pytest_clustersmoke.report.page_sheet import list_facts
from pytest_clustersmoke.report.run_digest import RunDigest
from pytest_clustersmoke.report.runs_page import (
    NIGHTS,
    RunRow,
    judge_listed,
    render_runs_page,
    write_runs_page,
)
from tests.report.nights import add_report, night, rated, store_nights
from tests.report.page_samples import HOSTILE, Elements, page
from tests.support import records
from tests.support.unreadable_folder import deny_reading

TWICE = [records.attempt(1, "preempted"), records.attempt(2)]


class Cells(HTMLParser):
    """The cells of the tables of a page, by the table's name: rows of (class, text, link)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = {}
        self._name = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "table":
            self._name = str(values["data-table"])
            self.tables[self._name] = []
        elif self._name and tag == "tr":
            self.tables[self._name].append([])
        elif self._name and tag in ("td", "th"):
            self.tables[self._name][-1].append([values.get("class") or "", "", ""])
        elif self._name and tag == "a":
            self.tables[self._name][-1][-1][2] = str(values["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._name = ""

    def handle_data(self, data: str) -> None:
        if self._name and self.tables[self._name] and self.tables[self._name][-1]:
            self.tables[self._name][-1][-1][1] += data


def listed(report_dir: Path) -> dict[str, ListedPhase]:
    """The phases of the newest run."""
    with open_for_reading(report_dir) as connection:
        assert connection is not None
        return read_newest_runs(connection, 1)[0].newest[0].phases


def test_strip_has_each_night_and_links_only_to_kept_reports(tmp_path: Path) -> None:
    """A night is a column, the newest at the right; what is wrong links to its place in the report.
    A night whose report was pruned has no link."""
    ids = store_nights(tmp_path, 6, ["wide", "small"])
    add_report(tmp_path, ids[-1])
    tables = Cells(render_runs_page(tmp_path)).tables
    _, days, verdicts, wide, small = tables["strip"]
    assert [link for _, _, link in days[1:]] == [""] * 5 + [f"{ids[-1]}/index.html"]
    assert [tone for tone, _, _ in verdicts[1:]] == ["good"] * 5 + ["bad"]
    assert wide[0][1] == "wide" and [cell[0] for cell in wide[1:]] == ["good"] * 5 + ["bad"]
    assert wide[-1][2] == f"{ids[-1]}/index.html#phase-wide" and wide[1][2] == ""
    assert "1 failed" in wide[-1][1] and "slow-rank" in wide[-1][1]
    assert [cell[0] for cell in small[1:]] == ["good"] * 6
    rows = tables["runs"][1:]
    assert [row[2][1].split()[0] for row in rows] == ids[::-1]
    assert [row[2][2] for row in rows] == [f"{ids[-1]}/index.html"] + [""] * 5
    assert "The report of a run without a link was pruned." in render_runs_page(tmp_path)


def test_times_are_local_with_their_zone_beside_utc(tmp_path: Path) -> None:
    """A run at one at night is of that day, although it is the day before in UTC; runs of which
    the zone is unknown are in UTC."""
    begun = records.BEGUN + 12 * 3600 - 100  # 23:05 UTC
    store_nights(tmp_path, 1, ["wide"])
    request = {**records.REQUEST, "utc_offset_s": 7200}
    made = night(1, rated("wide", 10.0), begun=begun, request=request)
    records.store_run(made, tmp_path)
    text = render_runs_page(tmp_path)
    tables = Cells(text).tables
    started = [row[0][1] for row in tables["runs"][1:]]
    assert started == ["2026-11-19 01:05 UTC+02:00 (2026-11-18 23:05 UTC)", "2026-11-18 11:06 UTC"]
    assert [cell[1].split()[0] for cell in tables["strip"][1]] == ["Day,", "18", "19"]
    assert "Day, local time" in text and "local times" in text and "times in UTC" not in text


def test_row_of_a_run_has_its_id(tmp_path: Path) -> None:
    """The pages of runs link to it."""
    ids = store_nights(tmp_path, 3, ["wide"])
    elements = Elements(render_runs_page(tmp_path)).all("tr")
    assert [row["id"] for row in elements if "id" in row] == ids[::-1]


def test_passed_phase_that_is_not_good_has_no_tick_but_a_link(tmp_path: Path) -> None:
    """Its own report says what was not measured."""
    made = night(0, {**rated("wide", 10.0), "all_criteria": False})
    records.store_run(made, tmp_path)
    add_report(tmp_path, made["run_id"])
    _, tone_words_link = Cells(render_runs_page(tmp_path)).tables["strip"][3]
    tone, words, link = tone_words_link
    assert (tone, words[0], link) == ("none", "?", f"{made['run_id']}/index.html#phase-wide")


def test_unreadable_report_counts_as_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that only a colleague can read must not cost the page over runs."""
    ids = store_nights(tmp_path, 2, ["wide"])
    add_report(tmp_path, ids[0])
    deny_reading(monkeypatch, tmp_path / ids[1])
    rows = Cells(render_runs_page(tmp_path)).tables["runs"][1:]
    assert [row[2][2] for row in rows] == ["", f"{ids[0]}/index.html"]


def test_change_of_versions_is_marked(tmp_path: Path) -> None:
    """In the strip, in the row of the run, and at the phase's point in the chart."""
    store_nights(tmp_path, 6, ["wide"])
    text = render_runs_page(tmp_path)
    tables = Cells(text).tables
    changed = [cell[0] for cell in tables["strip"][1][1:]]
    assert changed == ["", "", "", "changed", "", ""]
    words = "torch 2.5.1+cu121 -> 2.6.0+cu124"
    assert [words in row[4][1] for row in tables["runs"][1:]] == [False, False, True] + [False] * 3
    notes = [cell.get("data-note") for cell in Elements(text).all("td")]
    assert [note for note in notes if note] == [words]


def test_trend_has_the_reference_of_each_phase(tmp_path: Path) -> None:
    """With its bounds; the newest value outside of them is marked."""
    store_nights(tmp_path, 4, ["wide", "small"])
    heads = [head for head in Elements(render_runs_page(tmp_path)).all("th") if "data-key" in head]
    assert [(head["data-key"], head["data-unit"], head.get("data-met")) for head in heads] == [
        ("wide", "steps/s", "no"),
        ("small", "steps/s", None),
    ]
    assert {(head["data-reference"], head["data-low"]) for head in heads} == {("10.0", "9.3")}


def test_matrix_counts_bad_nodes_and_names_the_worst_first(tmp_path: Path) -> None:
    """`node2: slow-rank in 1 of 2 phases`; the others are in order of their names."""
    store_nights(tmp_path, 5, ["wide", "small"])
    head, *rows = Cells(render_runs_page(tmp_path)).tables["nodes"]
    assert [cell[1].strip() for cell in head] == ["Node", "Named for", "wide", "small"]
    assert [row[0][1] for row in rows] == ["node2", "node0", "node1", "node3"]
    assert rows[0][1][1] == "slow-rank in 1 of 2 phases"
    assert [[tone, text.strip()] for tone, text, _ in rows[0][2:]] == [
        ["n off", "1/5"],
        ["n", "0/5"],
    ]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, ("passed", "good")),
        ({"all_criteria": False}, ("passed, not counted as good", "none")),
        ({"attempts": TWICE}, ("passed on attempt 2", "warn")),
        (
            {"attempts": TWICE, "all_criteria": False},
            ("passed on attempt 2, not counted as good", "none"),
        ),
        ({"outcome": "never_ran"}, ("not measured (never ran)", "none")),
        ({"outcome": "failed"}, ("failed", "bad")),
        ({"criteria": {"test_a": {"result": "failed", "text": ""}}}, ("1 failed", "bad")),
        ({"criteria": {"test_a": {"result": "known", "text": ""}}}, ("passed, 1 known", "warn")),
        (
            {"outcome": "failed", "criteria": {"job": {"result": "known", "text": ""}}},
            ("failed, known", "warn"),
        ),
    ],
)
def test_stored_phase_has_the_verdict_of_its_report(
    tmp_path: Path, changes: records.Record, verdict: tuple[str, str]
) -> None:
    """From what the history has of it."""
    records.store_run(night(0, {**rated("wide", 10.0), **changes}), tmp_path)
    assert judge_listed(listed(tmp_path)["wide"]) == verdict


def test_phase_that_lacks_what_is_required_is_not_measured(tmp_path: Path) -> None:
    """Also where later runs may be judged against it, as against a first night without past. The
    cell leads to the phase; one that lacks nothing is as good as on any night."""
    lacks = [
        {"phase": "wide", "kind": kind, "reason": "none"} for kind in ("references", "history")
    ]
    whole = rated("wide", 10.0), rated("small", 10.0)
    records.store_run(night(0, *whole, verdict="INCONCLUSIVE", missing=lacks), tmp_path)
    phases = listed(tmp_path)
    assert phases["wide"].good
    assert judge_listed(phases["wide"]) == ("not measured (references, history)", "none")
    assert judge_listed(phases["small"]) == ("passed", "good")


def test_each_cluster_has_its_section(tmp_path: Path) -> None:
    """The one with the newest run comes first; its name is an anchor without escapes."""
    for number, cluster in enumerate(("old", "a new/one")):
        records.store_run(night(number, rated("wide", 10.0), cluster=cluster), tmp_path)
    text = render_runs_page(tmp_path)
    sections = [part["id"] for part in Elements(text).all("section")]
    assert sections == ["cluster-a-new-one", "cluster-old"] and "2 of 2 FIT" in text


def heading(text: str) -> tuple[str, str]:
    """The verdict at the top of the page, and its tone."""
    (header,) = Elements(text).all("header")
    return text.split('<h1 data-field="verdict">')[1].split("<")[0], str(header["class"])


@pytest.mark.parametrize(
    ("changes", "last"),
    [({"selection": "-k small"}, ("none", "◐FIT of a part")), ({"phases": []}, ("bad", "✗UNFIT"))],
    ids=["part", "screen"],
)
def test_heading_is_the_newest_run_of_all_phases(
    tmp_path: Path, changes: records.Record, last: tuple[str, str]
) -> None:
    """A FIT run of one phase or a FIT screen after an UNFIT night makes nothing green, even if
    there are so many that the night is not in the strip, which leaves out screens."""
    bad = {**rated("wide", 10.0), "outcome": "failed"}
    for number in range(NIGHTS + 2):
        later = night(number, rated("small", 10.0), **changes)
        records.store_run(later if number else night(0, bad), tmp_path)
        if number in (1, NIGHTS + 1):
            text = render_runs_page(tmp_path)
            part = "FIT of a part" if "selection" in changes else "FIT of a screen"
            assert heading(text) == ("UNFIT", "verdict bad") and f">{part}</span> run" in text
            tables = Cells(text).tables
            tone, words, _ = tables["strip"][2][-1]
            assert (tone, words.strip()) == last
            assert tables["runs"][-1][1][1] == "UNFIT" and tables["runs"][1][1][1] == part


def test_hourly_screens_hide_no_night(tmp_path: Path) -> None:
    """The strip and the rates are of the nights alone; the list also has the newest screens."""
    ids = store_nights(tmp_path, 3, ["wide"])
    assert "screens" not in render_runs_page(tmp_path).split('data-table="strip"')[0]
    screens = [night(3 + number, phases=[]) for number in range(NIGHTS + 1)]
    for made in screens:
        records.store_run(made, tmp_path)
    text = render_runs_page(tmp_path)
    tables = Cells(text).tables
    assert [tone for tone, _, _ in tables["strip"][2][1:]] == ["good", "good", "bad"]
    assert len(tables["trend"]) == 1 + 3
    rows = [row[2][1].split()[0] for row in tables["runs"][1:]]
    assert rows == [*(made["run_id"] for made in screens[:0:-1]), *ids[::-1]]
    assert "The last 3 runs" in text and "screens are in the list of each run" in text


def test_cluster_that_was_only_screened_has_a_strip(tmp_path: Path) -> None:
    records.store_run(night(0, phases=[]), tmp_path)
    tables = Cells(render_runs_page(tmp_path)).tables
    assert tables["strip"][2][-1][1].strip() == "◐FIT of a screen"


def test_later_bad_part_takes_the_green_from_the_heading(tmp_path: Path) -> None:
    """The last night was FIT; one phase that failed since then stands beside its verdict."""
    bad = {**rated("wide", 10.0), "outcome": "failed"}
    records.store_run(night(0, rated("wide", 10.0)), tmp_path)
    records.store_run(night(1, bad, selection="-k wide"), tmp_path)
    records.store_run(night(2, rated("wide", 10.0), selection="-k wide"), tmp_path)
    text = render_runs_page(tmp_path)
    assert heading(text) == ("FIT", "verdict warn") and ">UNFIT of a part</span> run" in text
    assert "selected: -k wide" in text


def test_cluster_without_a_run_of_all_phases_is_not_fit(tmp_path: Path) -> None:
    records.store_run(night(0, rated("wide", 10.0), selection="-k wide"), tmp_path)
    assert heading(render_runs_page(tmp_path)) == ("FIT of a part", "verdict warn")


def test_old_runs_are_left_out_unless_their_report_is_kept(tmp_path: Path) -> None:
    """The strip has the newest NIGHTS runs; the rows have kept older ones, too."""
    ids = [night(number, rated("wide", 10.0)) for number in range(NIGHTS + 3)]
    for made in ids:
        records.store_run(made, tmp_path)
    add_report(tmp_path, ids[1]["run_id"])
    tables = Cells(render_runs_page(tmp_path)).tables
    assert len(tables["strip"][1]) == 1 + NIGHTS
    rows = [row[2][1].split()[0] for row in tables["runs"][1:]]
    assert len(rows) == NIGHTS + 1 and rows[-1] == ids[1]["run_id"]


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    """Names, sentences, findings and versions come from users and jobs."""
    bad = rated("wide", 10.0)
    bad |= {"phase": f"wide{HOSTILE}", "outcome": "failed", "reason": HOSTILE}
    bad["findings"] = [records.finding(id=f"slow{HOSTILE}", cause=HOSTILE)]
    for number in range(2):
        bad["versions"] = {**records.VERSIONS, "torch": f"{number}{HOSTILE}"}
        made = night(number, bad, cluster=f"one{HOSTILE}", sentence=HOSTILE, partial=HOSTILE)
        records.store_run(made, tmp_path)
    text = render_runs_page(tmp_path)
    elements = Elements(text)
    assert not elements.all("img") and len(elements.scripts) == 8
    assert "\u202e" not in text and "\x1b" not in text and "&lt;script&gt;" in text


def test_what_only_a_private_history_has_is_hidden(tmp_path: Path) -> None:
    """With `publish: names` only the user can read the history; the page has no path or UUID of
    it, and the names of nodes."""
    secret = "GPU-11111111-2222-3333-4444-555555555555 in /home/alice/run"
    bad = {**rated("wide", 10.0), "outcome": "failed", "reason": secret}
    bad["findings"] = []
    for number in range(2):
        bad["versions"] = {**records.VERSIONS, "torch": f"/opt/{number}/torch"}
        record = records.parsed(night(number, bad, sentence=f"UNFIT: {secret}"))
        history_store.store_run(record, tmp_path, observations=observe_nodes(record), private=True)
    assert (tmp_path / "history.db").stat().st_mode & 0o777 == 0o600
    text = render_runs_page(tmp_path)
    assert "/home/alice" not in text and "11111111" not in text and "/opt/" not in text
    assert "&lt;path&gt;" in text and "node2" in text


REQUEST = {"user": "", "host": "login1", "command": "", "utc_offset_s": 0}


@pytest.mark.parametrize("is_private", [True, False])
def test_each_run_is_published_as_its_own_profile_says(tmp_path: Path, is_private: bool) -> None:
    """Not as the mode of history.db says, which another run of the same directory may have set."""
    for number, publish in enumerate(("all", "names")):
        words = f"UNFIT: /home/alice/{publish}"
        made = night(number, rated("wide", 10.0), sentence=words)
        record = records.parsed({**made, "request": {**REQUEST, "publish": publish}})
        history_store.store_run(record, tmp_path, private=is_private)
    text = render_runs_page(tmp_path)
    assert "/home/alice/all" in text and "/home/alice/names" not in text


def test_phase_that_passed_on_a_later_attempt_has_no_tick(tmp_path: Path) -> None:
    """Nor the colour of a plain pass, whatever ended its first job; it links to its place in the
    report."""
    whole = {**rated("wide", 10.0), "attempts": TWICE}
    phases = [{**whole, "attempts": []}, whole, {**whole, "all_criteria": False}]
    for number, phase in enumerate(phases):
        records.store_run(night(number, phase), tmp_path)
    strip = Cells(render_runs_page(tmp_path)).tables["strip"]
    (row,) = [line for line in strip if line[0][1] == "wide"]
    plain, retried, unmeasured = row[1:]
    assert plain[0] == "good" and plain[1].startswith("✓")
    assert retried[0] == "warn" and retried[1].startswith("↻")
    assert "passed on attempt 2" in retried[1]
    assert unmeasured[0] == "none" and unmeasured[1].startswith("?")


def test_page_is_absent_without_a_history(tmp_path: Path) -> None:
    write_runs_page(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_page_over_45_nights_takes_less_than_03_seconds(tmp_path: Path) -> None:
    """45 nights of 14 phases; CPU time, the best of three, which other load affects little."""
    store_nights(tmp_path, 45, [f"phase_{number}" for number in range(14)])
    taken = []
    for _ in range(3):
        begun = time.process_time()
        write_runs_page(tmp_path)
        taken.append(time.process_time() - begun)
    assert min(taken) < 0.3, taken


@pytest.mark.parametrize("offset", ["10000000000000000", "'x'", "1.5", "-86400"])
def test_offset_that_no_clock_has_is_unknown(tmp_path: Path, offset: str) -> None:
    """Whoever wrote it into history.db: the page is made, and the run's time is in UTC."""
    store_nights(tmp_path, 1, ["wide"])
    with contextlib.closing(sqlite3.connect(tmp_path / "history.db")) as connection, connection:
        connection.execute(f"UPDATE runs SET utc_offset_s = {offset}")
    text = render_runs_page(tmp_path)
    assert Cells(text).tables["runs"][1][0][1] == "2026-11-18 11:06 UTC"
    assert "times in UTC" in text


@pytest.mark.parametrize("version", range(1, history_schema.VERSION))
def test_history_of_each_older_version_is_shown_and_then_migrated(
    tmp_path: Path, version: int
) -> None:
    """A reader changes nothing; the next run that is stored migrates it, and both are shown."""
    path = tmp_path / "history.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in itertools.chain(*history_schema.MIGRATIONS[:version]):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(f"PRAGMA application_id = {history_schema.APPLICATION_ID}")
        connection.execute(
            "INSERT INTO runs (run_id, cluster, backend, begun, written, verdict, sentence, "
            "selection, interrupted, partial, package_version, gpu, device, gpus_per_node, "
            "interconnect) VALUES ('old', 'gilbreth', 'slurm', 5.0, 6.0, 'FIT', 's', '', 0, '', "
            "'0', 'g', 'cuda', 2, '')"
        )
    before = path.read_bytes()
    assert ">old<" in render_runs_page(tmp_path) and path.read_bytes() == before
    store_nights(tmp_path, 1, ["wide"])
    started = [row[0][1] for row in Cells(render_runs_page(tmp_path)).tables["runs"][1:]]
    assert started[-1] == "1970-01-01 00:00 UTC" and len(started) == 2


@pytest.mark.parametrize("begun", [1e300, -1e300, 1e18, float("inf")])
def test_time_that_no_clock_has_costs_its_day_alone(tmp_path: Path, begun: float) -> None:
    """In a record of another machine, say: the page, the sheet and the digest show a dash."""
    broken = night(1, rated("a", 10.0), begun=begun, run_id="20261101-020000-00000b")
    records.store_run(night(0, rated("a", 10.0)), tmp_path)
    records.store_run(broken, tmp_path)
    text = render_runs_page(tmp_path)
    assert broken["run_id"] in text and 'data-table="strip"' in text
    row = _row_of(tmp_path, broken["run_id"])
    assert (row.month, row.day, row.began) == ("-", "-", "-")
    ended = records.parsed(broken | {"written": -begun if begun < 0 else begun})
    took = dict(list_facts(ended))["Took"]
    assert f": -, took {took}, 1 phase" in RunDigest.of(ended, tmp_path).lines()[1]
    assert page(broken)


def _row_of(report_dir: Path, run_id: str) -> RunRow:
    with open_for_reading(report_dir) as connection:
        assert connection is not None
        (cluster,) = read_newest_runs(connection, NIGHTS)
    (run,) = (run for run in cluster.newest if run.run_id == run_id)
    return RunRow(run, "", "")
