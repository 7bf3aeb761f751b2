"""The step summary: its content, and that GitHub's Markdown shows every text literally."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import given
from hypothesis import strategies as st

from pytest_clustersmoke.report.phase_table import phase_row
from pytest_clustersmoke.report.summary import (
    APART,
    MAX_BYTES,
    MAX_STEP_BYTES,
    MORE,
    add_step_summary,
    block,
    code,
    inline,
    short_summary,
    summary,
    table,
)
from pytest_clustersmoke.text import sanitize_line, sanitize_lines
from tests.support import records

HOSTILE = (
    "a|b `c` *d* _e_ <img src=x onerror=alert(1)> &amp; [f](http://g.h) @team/ops #12 GH-12 "
    "https://i.j www.k.l :100: $m$ ~~n~~ \\ ![o](p) m@n.org"
)


def rendered(text: str) -> str:
    """The HTML that GitHub renders from Markdown, before it adds mentions and links."""
    made: str = cmarkgfm.github_flavored_markdown_to_html(text, Options.CMARK_OPT_UNSAFE)
    return made


def letters(markup: str) -> str:
    """The text that a reader sees of HTML that has no markup but ours."""
    plain = html.unescape(re.sub(r"<[^>]*>", "", markup))
    return plain.replace(APART, "").strip()


def cells(markup: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", markup, re.DOTALL)
    return [
        [letters(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", r, re.DOTALL)] for r in rows
    ]


def seen(words: str) -> str:
    return sanitize_line(words).strip()


@given(st.text() | st.text(alphabet="|`*_<>&[]()@#:/.$~\\!-+=1aw\n \t"))
def test_table_text_is_shown_literally(words: str) -> None:
    """No text opens a cell, a row, markup or HTML."""
    shown = rendered(table(["one", "two"], [[words, "end"]]))
    (head, row) = cells(shown)
    # HTML collapses spaces.
    assert head == ["one", "two"] and row[1] == "end"
    assert row[0].split() == seen(words).split()
    assert set(re.findall(r"<(\w+)", shown)) <= {
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
    }


@given(st.text() | st.text(alphabet="`| \n<a"))
def test_code_is_shown_literally(words: str) -> None:
    """Backticks end neither code in a line nor a block of code."""
    line = rendered(code(words))
    assert line.count("<code>") == 1
    assert letters(line).split() == seen(words).split()
    shown = rendered(f"before\n\n{block(words)}\n\nafter")
    match = re.fullmatch(
        r'<p>before</p>\n<pre lang="text"><code>(.*)\n</code></pre>\n<p>after</p>\n',
        shown,
        re.DOTALL,
    )
    assert match is not None and html.unescape(match[1]) == sanitize_lines(words)


def test_text_becomes_no_mention_or_link() -> None:
    """Text that GitHub would turn into links, mentions, emoji or formulas is shown literally."""
    shown = rendered(inline(HOSTILE))
    assert letters(shown) == HOSTILE
    assert "<a" not in shown and "<img" not in shown and "<del" not in shown
    text = re.sub(r"<[^>]*>", "|", html.unescape(shown))
    left = re.findall(r"@\w|#\d|GH-\d|://|www\.|:\w+:|\$\w", text, re.IGNORECASE)
    assert left == []


def test_summary_has_everything_important() -> None:
    """Verdict, sentence, phases, findings with their next steps, failed criteria, changes."""
    bad = records.phase(outcome="failed", reason="exit 1", findings=[records.finding()])
    slow = records.phase("ddp_2gpu", 1, changed=["driver 550 -> 560"])
    slow["criteria"]["test_rate"] = {"result": "failed", "text": "9.5 is below 10\nby far"}
    slow["metrics"]["steps_per_s"]["past"] = {
        "status": "warn",
        "runs": 9,
        "median": 12.0,
        "mad": 0.5,
        "warn": 10.5,
        "fail": 9.0,
        "text": "21 % below the median of 9 runs",
    }
    plain = records.run(
        bad,
        slow,
        verdict="UNFIT",
        sentence="UNFIT: 1 of 2 phases failed (zero1_4node: failed)",
        changes=["ddp_2gpu failed, and passed before"],
        absent_phases=[
            "lora does not run on gilbreth: it needs 8 GPUs per node, and gilbreth has 2"
        ],
        differences=[{"fact": "driver", "values": {"550": ["node0"], "560": ["node1"]}}],
        partial="the run was interrupted",
    )
    record = records.parsed(plain)
    shown = rendered(summary(record))
    text = letters(shown)
    assert shown.startswith(
        "<h2>gilbreth: UNFIT</h2>\n<p><strong>UNFIT: 1 of 2 phases failed (zero1_4"
    )
    assert cells(shown)[1:] == [phase_row(phase, record.missing) for phase in record.phases]
    for words in (
        "Finding rank-killed: rank 3 was killed by signal 9 (node1, rank 3)",
        "Next: look into the kernel's log of node1",
        "nodes/0001/launcher.log:12",
        "exitcode: -9",
        "Criterion test_rate:\n9.5 is below 10\nby far",
        "ddp_2gpu failed, and passed before",
        "ddp_2gpu: steps_per_s: 21 % below the median of 9 runs",
        "ddp_2gpu: driver 550 -> 560",
        "driver: 550 on node0; 560 on node1",
        "lora does not run on gilbreth: it needs 8 GPUs per node, and gilbreth has 2",
        "This report is incomplete: the run was interrupted.",
        record.run_id,
    ):
        assert words in text, words


def test_summary_of_healthy_run_is_short() -> None:
    """Below the verdict there is only the table."""
    shown = rendered(summary(records.parsed(records.run())))
    assert "<h3>" not in shown and letters(shown).count("FIT") == 2


def test_criteria_of_a_failed_job_are_left_out() -> None:
    """They would only repeat that the job failed."""
    bad = records.phase(outcome="failed", findings=[records.finding()])
    bad["criteria"]["test_rate"] = {"result": "failed", "text": "see ::job"}
    assert "test_rate" not in summary(records.parsed(records.run(bad)))


def test_known_failures_are_named() -> None:
    """Each has its reason, its last day and its entry."""
    known = {"what": "a: job", "reason": "bad cable", "until": "2026-12-01", "where": "c.yaml:9"}
    record = records.parsed(records.run(known=[known], known_remarks=["one is over"]))
    text = letters(rendered(summary(record)))
    assert "a: job: bad cable (known until 2026-12-01, c.yaml:9)" in text and "one is over" in text


def test_proof_shows_its_gates() -> None:
    """One line for each gate, as in the terminal."""
    proof = records.proof(records.gate(), ib="no InfiniBand")
    record = records.parsed(records.run(verdict="PROVEN", proof=proof))
    text = letters(rendered(summary(record)))
    assert "rank-killed" in text and "ib is not staged: no InfiniBand" in text


def test_summary_is_bounded() -> None:
    """It never exceeds MAX_BYTES, and says that report.json has the rest."""
    findings = [records.finding(cause=HOSTILE * 40, fix=HOSTILE * 40) for _ in range(20)]
    phases = [records.phase(f"phase_{n}", outcome="failed", findings=findings) for n in range(40)]
    text = summary(records.parsed(records.run(*phases)))
    assert MAX_BYTES * 0.9 < len(text.encode()) <= MAX_BYTES and text.endswith(f"{MORE}\n")
    assert len(cells(rendered(text))) == 41


def test_summary_is_appended_to_the_step(tmp_path: Path) -> None:
    """It follows the earlier output of the step; outside GitHub nothing is written."""
    path, record = tmp_path / "step.md", records.parsed(records.run())
    add_step_summary(record, {})
    add_step_summary(record, {"GITHUB_STEP_SUMMARY": ""})
    assert not list(tmp_path.iterdir())
    path.write_text("earlier output")
    add_step_summary(record, {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text() == f"earlier output\n{summary(record)}"


@pytest.mark.parametrize("room", [10_000, 300, 5])
def test_nearly_full_step_gets_the_verdict_only(tmp_path: Path, room: int) -> None:
    """Over 1 MiB GitHub drops the whole summary: only the verdict is written, or nothing."""
    path, record = tmp_path / "step.md", records.parsed(records.run())
    path.write_text("x" * (MAX_STEP_BYTES - room))
    before = path.stat().st_size
    assert 5 < len(short_summary(record).encode()) < 300 < len(summary(record).encode()) < 10_000
    if room == 5:
        with pytest.raises(
            OSError, match="the step's summary is full: GitHub takes at most 1048576 bytes"
        ):
            add_step_summary(record, {"GITHUB_STEP_SUMMARY": str(path)})
        assert path.stat().st_size == before
    else:
        add_step_summary(record, {"GITHUB_STEP_SUMMARY": str(path)})
        added = path.read_text()[before:]
        assert added == f"\n{summary(record) if room == 10_000 else short_summary(record)}"


def test_full_disk_leaves_the_step_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial summary is removed: half a table would absorb the next output of the step."""
    path = tmp_path / "step.md"
    path.write_text("before")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, made: write(fd, made[:10]))
    with pytest.raises(OSError, match="only 10 of"):
        add_step_summary(records.parsed(records.run()), {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text() == "before"


def test_special_file_is_refused(tmp_path: Path) -> None:
    """A device is refused, and a pipe without a reader does not block the run."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError):
        add_step_summary(records.parsed(records.run()), {"GITHUB_STEP_SUMMARY": str(pipe)})
    with pytest.raises(OSError, match="names /dev/null, which is not a regular file"):
        add_step_summary(records.parsed(records.run()), {"GITHUB_STEP_SUMMARY": "/dev/null"})
