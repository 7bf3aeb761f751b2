"""The verdict of a screen, and its lists for people and for scripts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_clustersmoke import plugin
from pytest_clustersmoke.evidence.node_observation import NodeObservation
from pytest_clustersmoke.evidence.run_counts import RunTally
from pytest_clustersmoke.evidence.run_record import DifferenceRecord, RunRecord
from pytest_clustersmoke.evidence.screen_record import (
    ScreenCheckRecord,
    ScreenedNode,
    ScreenRecord,
)
from pytest_clustersmoke.report.node_evidence import observe_screen
from pytest_clustersmoke.report.page import page
from pytest_clustersmoke.report.publication import list_views, metrics_path
from pytest_clustersmoke.report.screen_lists import render_lists
from pytest_clustersmoke.report.summary import summary
from pytest_clustersmoke.report.terminal import node_lines, screen_lines
from pytest_clustersmoke.report.verdict import FIT, INCONCLUSIVE, UNFIT, RunVerdict, judge_record
from tests.report.page_samples import links
from tests.support.records import counted


def node(name: str, state: str = "passing", group: str = "", reason: str = "") -> ScreenedNode:
    finding = reason.partition(":")[0]
    failed = ScreenCheckRecord(result="failed", text=reason, finding=finding, severity="failure")
    answered = state in ("passing", "failing")
    made: dict[str, Any] = {
        "node": name,
        "state": state,
        "group": group,
        "reason": reason,
        "slurm_state": "idle" if state != "not screened" else "allocated",
        "job_id": "7" if answered else "",
        "seconds": 0.5 if answered else None,
        "checks": {"gpus": failed} if state == "failing" else {},
    }
    return ScreenedNode.model_validate(made)


def good(count: int) -> list[ScreenedNode]:
    return [node(f"n{number}") for number in range(count)]


BUSY = node("b1", "not screened", "busy", "b1 is allocated")
DRAINED = node("d1", "not screened", "drained", "d1 is drained: fan")
BAD = node("x1", "failing", reason="gpu-ecc-errors: GPU 3 has had 5 errors")
SILENT = node("s1", "no answer", reason="answer: no answer within 60 s")


def record_of(*nodes: ScreenedNode, minimum: float = 0.0, **changes: Any) -> RunRecord:
    tally = RunTally(interrupted=changes.pop("interrupted", False))
    for name, value in changes.items():
        setattr(tally.counts, name, value)
    record = counted(tally)
    record.screen = ScreenRecord(partition="gpu", minimum=minimum, limit_s=60, nodes=list(nodes))
    return record


def verdict_of(*nodes: ScreenedNode, **changes: Any) -> RunVerdict:
    return judge_record(record_of(*nodes, **changes))


def test_nodes_that_all_pass_are_fit_with_their_counts() -> None:
    made = verdict_of(*good(4), BUSY, BUSY, DRAINED)
    assert (made.name, made.exit_status) == (FIT, 0)
    assert made.sentence == "FIT for 4 of 7 nodes; 3 not screened: 2 busy, 1 drained"


def test_one_bad_node_is_unfit_and_named() -> None:
    """Also if another gave no answer."""
    made = verdict_of(*good(4), BAD, SILENT)
    assert (made.name, made.exit_status) == (UNFIT, 1)
    assert made.failed == ["x1: gpu-ecc-errors: GPU 3 has had 5 errors"]
    assert made.sentence.startswith("UNFIT: 4 of 6 nodes passed; 1 failed; 1 gave no answer (x1: ")
    assert "s1: answer: no answer within 60 s" in made.sentence


def test_many_bad_nodes_are_named_with_what_is_wrong_in_brief() -> None:
    """In full their reasons would not fit the sentence, and the last ones would be cut."""
    bad = [
        node(f"x{number}", "failing", reason=f"tmp-not-writable: {'cannot create files ' * 5}")
        for number in (1, 2)
    ]
    sentence = verdict_of(*good(4), *bad, SILENT).sentence
    assert sentence.endswith("(x1: tmp-not-writable; x2: tmp-not-writable; s1: no answer)")


def test_node_whose_devices_were_not_measured_is_not_fit() -> None:
    """The profile asks for it, and most nodes could not either: nothing speaks for them."""
    blind = good(1)[0].model_copy(update={"unmeasured": "not measured: its ranks ended"})
    made = verdict_of(*good(2), blind, blind)
    assert made.name == INCONCLUSIVE
    assert "4 of 4 nodes passed (the devices of 2 nodes were not measured: its" in made.sentence


def test_node_without_an_answer_is_inconclusive_and_never_fit() -> None:
    made = verdict_of(*good(4), SILENT)
    assert (made.name, made.exit_status) == (INCONCLUSIVE, 6)
    assert made.not_measured == ["s1: answer: no answer within 60 s"]


@pytest.mark.parametrize("nodes", [(), (BUSY, DRAINED)])
def test_screen_of_no_node_is_inconclusive(nodes: tuple[ScreenedNode, ...]) -> None:
    made = verdict_of(*nodes)
    assert made.name == INCONCLUSIVE and "no node was screened" in made.sentence


@pytest.mark.parametrize(("share", "fit", "busy"), [("55%", 55, 45), ("99.9%", 999, 1)])
def test_share_that_is_met_to_the_node_is_enough(share: str, fit: int, busy: int) -> None:
    """As floating-point numbers, 0.55 * 100 is more than 55, and 99.9 / 100 more than 0.999."""
    minimum = plugin._parse_share(share)
    assert verdict_of(*good(fit), *[BUSY] * busy, minimum=minimum).name == FIT
    assert verdict_of(*good(fit - 1), *[BUSY] * (busy + 1), minimum=minimum).name == INCONCLUSIVE


@pytest.mark.parametrize(("minimum", "verdict"), [(0.8, FIT), (0.81, INCONCLUSIVE)])
def test_too_few_nodes_are_inconclusive(minimum: float, verdict: str) -> None:
    made = verdict_of(*good(4), BUSY, minimum=minimum)
    assert made.name == verdict
    assert (verdict == FIT) != ("at least 81% of the nodes must pass" in made.sentence)


def test_nodes_that_no_phase_gets_need_not_pass() -> None:
    """Those without the profile's features, and those that it excludes."""
    others = [
        node("a1", "not screened", "other features", "a1 lacks h100"),
        node("a2", "not screened", "excluded by the profile", "the profile names a2"),
    ]
    made = verdict_of(*good(4), *others, minimum=1.0)
    assert made.sentence.startswith("FIT for 4 of 6 nodes; 2 not screened: 1 other features, ")


def test_interrupted_screen_is_never_fit() -> None:
    made = verdict_of(*good(4), interrupted=True, exit_status=2)
    assert (made.name, made.exit_status) == (INCONCLUSIVE, 2)


def test_selection_is_part_of_the_verdict() -> None:
    made = verdict_of(*good(2), selection="n0")
    assert made.sentence == "FIT: 2 of 2 nodes passed; selected: n0"


def test_lists_have_each_node_once() -> None:
    """A node that gave no answer is not fit for use; the word for sbatch has it, too."""
    screen = record_of(*good(2), BAD, SILENT, BUSY).screen
    assert screen is not None
    lists = render_lists(screen)
    assert lists["screen/passing.txt"] == "n0\nn1\n"
    assert lists["screen/failing.txt"] == "x1\ns1\n"
    assert lists["screen/not_screened.txt"] == "b1\n"
    assert screen.exclude == "--exclude=x1,s1"
    rows = [line.split("\t") for line in lists["screen/screen.tsv"].splitlines()]
    assert rows[0][:3] == ["node", "state", "slurm_state"] and rows[0][-1] == "reason"
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[3][:2] == ["x1", "failing"] and rows[3][rows[0].index("gpus")] == "failed"


def test_terminal_shows_what_to_look_at_and_counts_what_passes() -> None:
    screen = record_of(*good(40), BAD, SILENT, BUSY).screen
    assert screen is not None
    lines = [line for line, _ in node_lines(screen)]
    assert [line.split()[0] for line in lines[1:4]] == ["x1", "s1", "b1"]
    assert lines[4].startswith("40 passing") and "and 32 more" in lines[4]
    assert lines[5] == "leave out what is not fit: --exclude=x1,s1"


def test_facts_in_which_the_nodes_differ_follow_the_nodes() -> None:
    """They fail no node: on the page, in the summary and in the terminal, as warnings."""
    record = record_of(*good(3))
    record.differences = [
        DifferenceRecord(fact=f"fact {number}", values={"6.1": ["n0", "n1"], "5.4": ["n2"]})
        for number in range(8)
    ]
    lines = [line for line, _ in screen_lines(record, record.screen or pytest.fail("no screen"))]
    assert lines[-7] == "nodes differ: fact 0: 5.4 on n2; 6.1 on the other 2"
    assert lines[-1] == "... and 2 more in report.json"
    assert lines[-7] in summary(record)
    html = page(record)
    assert "Differences between nodes" in html and "passed every check" not in html
    assert {*re.findall('href="#([^"]+)"', html)} <= {*re.findall('id="([^"]+)"', html)}


def test_most_nodes_are_not_left_out_by_one_word() -> None:
    """A broken `setup` would empty the partition: what the nodes share comes first. Not so where
    each has a reason of its own; of two nodes nobody can tell."""
    bad = [node(f"x{number}", "failing", reason="tmp-full: full") for number in range(3)]
    screen = record_of(*good(2), *bad).screen
    others = record_of(*good(1), *bad[:1], BAD, SILENT).screen
    few = record_of(*bad[:2]).screen
    assert screen is not None and others is not None and few is not None
    last, _ = [*node_lines(screen)][-1]
    words = "3 of 5 nodes are not fit for one reason (tmp-full)"
    assert last.startswith(f"{words}: look first at what they share (`setup`")
    assert screen.exclude == "" and few.exclude == "--exclude=x0,x1"
    assert others.exclude == "--exclude=x0,x1,s1"
    assert words in page(record_of(*good(2), *bad))


def test_summary_of_a_step_has_the_table() -> None:
    text = summary(record_of(*good(2), BAD))
    assert "\nx1         failing" in text and "--exclude=x1" in text


def test_hostile_reason_stays_in_its_cell() -> None:
    screen = record_of(node("x1", "failing", reason="a\tb\n\x1b[31mc")).screen
    assert screen is not None
    table = render_lists(screen)["screen/screen.tsv"]
    assert table.count("\n") == 2 and "\x1b" not in table


def test_screen_leaves_the_metrics_of_the_cluster_alone(tmp_path: Any) -> None:
    assert metrics_path(record_of(*good(2)), tmp_path) == []


def test_history_of_nodes_gets_what_was_seen_of_each() -> None:
    """Memory errors and wrong answers need no second evidence, slow devices do; of a node that was
    not screened nothing is known, and a node is not to blame for no answer if half of the others
    gave none."""
    bad = [
        BAD,
        node("x2", "failing", reason="device-wrong-answer: GPU-1 computes wrongly"),
        node("x3", "failing", reason="device-slow: its gemm_bf16_tflops is 9 TFLOP/s"),
    ]
    seen = {each.node: (each.state, each.kind, each.definite) for each in observed(*good(1), *bad)}
    assert seen == {
        "n0": ("good", "", False),
        "x1": ("bad", "gpu-ecc-errors", True),
        "x2": ("bad", "device-wrong-answer", True),
        "x3": ("bad", "device-slow", False),
    }
    kind = "gpu-ecc-errors"
    (clean,) = observed(node("n0").model_copy(update={"cleared": [kind]}))
    assert clean.cleared == {kind}
    states = [each.state for each in observed(*good(2), SILENT, BUSY)]
    assert states == ["good", "good", "bad"]
    assert [each.state for each in observed(*good(1), SILENT)] == ["good", "unknown"]


def observed(*nodes: ScreenedNode) -> list[NodeObservation]:
    screen = record_of(*nodes).screen
    assert screen is not None
    return observe_screen(screen)


def test_page_links_the_lists(tmp_path: Any) -> None:
    """Also when it is first written, before they are."""
    views = list_views(record_of(*good(2), BAD), tmp_path, has_journal=False, in_history=False)
    views["index.html"]()
    lists = {name for name in views if name.startswith("screen/")}
    assert len(lists) == 4 and lists <= links(tmp_path)


def test_page_shows_every_node_by_text_and_colour() -> None:
    record = record_of(*good(2), BAD, SILENT, BUSY)
    text = page(record)
    assert "<title>" in text
    for name in ("n0", "n1", "x1", "s1", "b1"):
        assert text.count(f">{name}<") >= 2  # on the map and in the table
    assert 'data-table="screen"' in text and "no answer within 60 s" in text
