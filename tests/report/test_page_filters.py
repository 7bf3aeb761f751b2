"""What the reader of a page chooses to see: runs in trends, criteria, the line of a file."""

from __future__ import annotations

from pathlib import Path

from tests.report import staged
from tests.report.browsing import Browse, Opened
from tests.support import records

SMALL = "figure[data-chart=trends] .small"


def runs_drawn(opened: Opened) -> set[str | None]:
    """How many runs the charts of past runs tell."""
    charts = opened.page.locator(SMALL)
    return {*charts.evaluate_all("all => all.map(e => e.getAttribute('aria-valuemax'))")}


def test_one_choice_of_runs_holds_for_all_trends(browse: Browse) -> None:
    """All charts of the page show the last seven runs, on the same days, and then all of them."""
    opened = browse(staged.run())
    opened.open_all()
    choices = opened.page.locator("figure[data-chart=trends] select")
    assert choices.count() > 1 and runs_drawn(opened) == {"31"}
    first = choices.first
    words = first.locator("option").all_text_contents()
    assert words == ["all 31", "the last 7", "the last 14", "the last 30"]
    first.select_option("7")
    opened.settle()
    assert {*choices.evaluate_all("all => all.map(e => e.value)")} == {"7"}
    assert runs_drawn(opened) == {"7"}
    axes = opened.page.locator(f"{SMALL} g[data-mark='x-axis tick label']")
    assert len({*axes.all_text_contents()}) == 1
    first.select_option("")
    opened.settle()
    assert runs_drawn(opened) == {"31"}
    opened.check_quiet()


def shown_criteria(opened: Opened) -> list[tuple[str, str]]:
    """Phase and criterion of each row that is shown."""
    rows = opened.page.locator("table.criteria tbody tr:visible")
    words = "all => all.map(e => [e.closest('.phase').dataset.phase, e.cells[1].textContent])"
    return [(phase, name) for phase, name in rows.evaluate_all(words)]


def test_criteria_of_all_phases_are_found_by_any_word(browse: Browse) -> None:
    """By name, result and message; what has none is hidden, and comes back as it was."""
    passed = {f"test_{number}": {"result": "passed", "text": ""} for number in range(9)}
    slow = {"test_rate": {"result": "failed", "text": "30 % below the reference"}, **passed}
    phases = [records.phase("ddp", criteria=slow), records.phase("lora", criteria=passed)]
    opened = browse(records.run(*phases, verdict="UNFIT"))
    parts = opened.page.locator(".phase > details")
    before = parts.evaluate_all("all => all.map(e => e.open)")
    field, said = opened.page.get_by_label("Find a criterion"), opened.page.locator("output")
    field.fill("failed Below")
    assert shown_criteria(opened) == [("ddp", "test_rate")]
    assert said.inner_text() == "1 of 19 criteria, in 1 of 2 phases"
    assert opened.page.locator("#phase-lora").is_hidden()
    metrics = opened.page.locator("#phase-ddp-metrics")
    assert metrics.is_hidden()  # so that the criteria of several phases are on one screen
    field.fill("test_7")  # among those that passed, which share a row
    assert said.inner_text() == "2 of 19 criteria, in 2 of 2 phases"
    assert all("test_7" in name for _, name in shown_criteria(opened))
    assert opened.page.locator("#phase-lora .criteria details").get_attribute("open") is not None
    field.fill("no such")
    assert shown_criteria(opened) == [] and said.inner_text().startswith("0 of 19 criteria")
    field.fill("")
    assert parts.evaluate_all("all => all.map(e => e.open)") == before and said.inner_text() == ""
    assert opened.page.locator(".phase[hidden], .criteria tr[hidden]").count() == 0
    assert metrics.is_visible()
    opened.check_quiet()


def test_paper_has_what_a_search_hides(browse: Browse) -> None:
    """A page that was searched is printed whole; on the screen the search stays."""
    criteria = {f"test_{number}": {"result": "passed", "text": ""} for number in range(9)}
    one = {**criteria, "test_rate": {"result": "passed", "text": ""}}
    phases = [records.phase("ddp", criteria=one), records.phase("lora", criteria=criteria)]
    opened = browse(records.run(*phases))
    metrics, other = opened.page.locator("#phase-ddp-metrics"), opened.page.locator("#phase-lora")
    opened.page.get_by_label("Find a criterion").fill("rate")
    assert metrics.is_hidden() and other.is_hidden()
    opened.ask("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator(".phase[hidden], tr[hidden], .finding-criteria").count() == 0
    opened.ask("dispatchEvent(new Event('afterprint'))")
    assert metrics.is_hidden() and other.is_hidden()


def test_without_scripts_nothing_asks(browse: Browse) -> None:
    """What only a script can do is not offered; every criterion and past run is in its table."""
    opened = browse(staged.run(), scripts=False)
    assert opened.page.locator("select, input[type=search]").count() == 0


def test_excerpt_leads_to_its_line_of_the_log(browse: Browse, tmp_path: Path) -> None:
    """The browser scrolls to it, if it takes the file for plain text; signs that mean something to
    text fragments do no harm."""
    line = "[rank1]: RuntimeError: a-b, c & d = 100 % of 7"
    file = "nodes/0001/launcher.txt"
    found = {"file": file, "line": 300, "text": line}
    phase = records.phase(
        "small", outcome="failed", findings=[records.finding(evidence=[found])], criteria={}
    )
    log = tmp_path / "phases" / "small" / file
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"{line if at == 300 else f'step {at}'}\n" for at in range(1, 600)))
    opened = browse(records.run(phase, verdict="UNFIT"))
    opened.page.locator("#findings a", has_text="launcher.txt:300").click()
    opened.page.wait_for_function("scrollY > 0")
    height = opened.page.evaluate("document.documentElement.scrollHeight")
    middle = opened.page.evaluate("scrollY + innerHeight / 2")
    assert 0.4 < middle / height < 0.6
