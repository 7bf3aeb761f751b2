"""A node that several phases name is one thing to look at; and what ran where, now and before."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import ISOLATION_FINDING
from pytest_clustersmoke.evidence.run_record import RunRecord
from pytest_clustersmoke.report.named_nodes import (
    describe_node,
    find_bad_nodes,
    list_shared,
    name_nodes,
    title_bad_nodes,
)
from pytest_clustersmoke.report.redaction import Redactor
from pytest_clustersmoke.report.run_digest import RunDigest
from pytest_clustersmoke.report.summary import summary
from tests.report.browsing import Browse
from tests.report.page_samples import Elements, page, printed
from tests.support import records

KNOWN = {"what": "a", "reason": "cable", "until": "2026-12-01", "where": "cluster.yaml:9"}
GPU = "GPU-00000003-0000-4000-8000-000000000000"  # of rank 3, on node1


def failed(name: str, dead: tuple[int, ...] = (3,), **changes: object) -> records.Record:
    """A phase of four nodes whose job died on node1."""
    found = records.finding(cause=f"rank {dead[0]} was killed by signal 9", ranks=[*dead])
    return records.phase(name, outcome="failed", findings=[{**found, **changes}])


def slow(name: str, rank: int = 3) -> records.Record:
    phase = records.phase(name)
    phase["ranks"][rank]["behind"] = True
    return phase


def named(*phases: records.Record, past: Path | None = None) -> records.Record:
    """A run of these phases, with the nodes that they name, and their past."""
    made = records.run(*phases, verdict="UNFIT", sentence="UNFIT: 2 of 3 phases failed")
    record = records.parsed(made)
    made["named_nodes"] = [node.model_dump() for node in name_nodes(record)]
    if past is not None:
        records.annotate(made, past)
    return made


def test_node_that_several_phases_name_is_named_once() -> None:
    """With each phase, its cause and the line that shows it; the one of the most phases first."""
    record = records.parsed(named(failed("a"), slow("b"), failed("c", hosts=["node2"])))
    first, second = record.named_nodes
    assert (first.node, first.phases) == ("node1", ["a", "b"])
    assert [one.finding for one in first.named] == ["rank-killed", "slow-rank"]
    assert (first.named[0].file, first.named[0].line) == ("nodes/0001/launcher.log", 12)
    assert first.named[0].cause == "rank 3 was killed by signal 9"
    assert [one.is_check for one in first.named] == [False, True]
    assert (second.node, second.phases) == ("node2", ["c"])
    assert [node.node for node in list_shared(record)] == ["node1"]


def test_device_is_named_if_it_is_the_same_in_all_phases() -> None:
    """Not if one phase means another GPU of the node, or does not say which."""
    assert records.parsed(named(failed("a"), slow("b"))).named_nodes[0].device == GPU
    for other in (slow("b", rank=2), failed("b", (2, 3)), failed("b", ranks=[])):
        assert records.parsed(named(failed("a"), other)).named_nodes[0].device == ""


def test_published_record_has_no_uuid_of_a_device() -> None:
    """With `limits.publish: names`."""
    hidden = Redactor("anna").hide_record(records.parsed(named(failed("a"), slow("b"))))
    assert hidden.named_nodes[0].device == "" and hidden.named_nodes[0].node == "node1"


def test_node_that_no_phase_accuses_is_not_named() -> None:
    """Where half of the nodes or more are named, it is a setting of theirs; a staged fault is no
    fault of a node."""
    both = failed("a", hosts=["node0", "node1"])
    assert named(both, both)["named_nodes"] == []
    staged = [{**failed(name), "fault": "rank-killed"} for name in ("a", "b")]
    assert named(*staged)["named_nodes"] == []


def nights(folder: Path, count: int, *phases: records.Record, nodes: int = 4) -> None:
    for number in range(count):
        some = [*phases] or [records.phase("a", nodes=nodes), records.phase("b", nodes=nodes)]
        made = records.run(*some, begun=records.BEGUN - 86400 * (number + 1))
        records.store_run(made, folder)


def test_terminal_summary_and_digest_have_one_line_for_the_node(tmp_path: Path) -> None:
    """With its past, by the history."""
    nights(tmp_path, 3)
    nights(tmp_path, 2, failed("a"), records.phase("b"))
    made = named(failed("a"), failed("b"), past=tmp_path)
    line = (
        f"node1, {GPU}: named by 2 phases: rank-killed in a, b; named in 2 of 5 earlier runs; no "
        "check of the node itself failed, so the programs may be the cause"
    )
    record = records.parsed(made)
    assert describe_node(record.named_nodes[0]) == line
    assert printed(made).count(line) == 1
    digest = RunDigest.of(record, tmp_path)
    assert digest.named_nodes == [line] == digest.as_dict()["named_nodes"]
    assert digest.lines()[2] == line
    assert "Nodes that several phases name" in summary(record)
    alone = records.parsed(named(failed("a"), records.phase("b")))
    assert RunDigest.of(alone, tmp_path).named_nodes == []


def test_page_has_one_card_for_the_node(tmp_path: Path) -> None:
    """In place of one for each phase; it leads to each cause, to the file that shows it, and to the
    ledger."""
    made = named(failed("a"), slow("b"), failed("c", hosts=["node2"]))
    text = page(made)
    cards = text[text.index('id="stands-out"') : text.index('class="asides"')]
    part = cards[cards.index('data-kind="named"') :]
    part = part[: part.index("</li>\n</ul>")]
    links = [str(link["href"]) for link in Elements(part).all("a")]
    assert links[:2] == ["#phase-a-findings", "phases/a/nodes/0001/launcher.log"]
    assert "#phase-b-ranks" in links
    assert "clustersmoke nodes --cluster gilbreth --node node1" in part
    assert f"node1, {GPU}: named by 2 phases" in part
    jobs = cards[cards.index('data-kind="jobs"') :]
    assert "#phase-c-findings" in jobs and "#phase-a-findings" not in jobs
    assert 'data-kind="stragglers"' not in cards
    sheet = text[text.index('class="sheet"') : text.index('id="stands-out"')]
    assert (
        sheet.count(f"<li>node1, {GPU}: named by 2 phases: rank-killed in a; slow-rank in b") == 1
    )


def test_node_without_a_card_hides_no_phase() -> None:
    """Three nodes have a card; the phases of a fourth have cards of their own."""
    phases = [failed(f"p{at}", hosts=[f"node{at // 2}"]) for at in range(8)]
    text = page(named(*phases))
    jobs = text[text.index('data-kind="jobs"') : text.index('class="asides"')]
    links = [link["href"] for link in Elements(jobs).all("a")]
    assert links == ["#phase-p6-findings", "#phase-p7-findings"]


def test_card_links_only_to_what_the_page_has() -> None:
    """A node failed in the first job of two phases that passed on their second: neither has
    findings."""
    tried = [
        records.attempt(1, "preempted", nodes=["node0", "node1"], failed_nodes=["node1"]),
        records.attempt(2),
    ]
    text = page(named(*(records.phase(name, attempts=tried) for name in ("a", "b"))))
    part = text[text.index('data-kind="named"') :]
    links = [str(link["href"]) for link in Elements(part[: part.index("</ul>")]).all("a")]
    assert links == ["#phase-a", "#phase-b"]
    elements = Elements(text)
    ids = {f"#{attributes.get('id')}" for _, attributes in elements.tags}
    targets = {str(link["href"]) for link in elements.all("a")}
    assert {target for target in targets if target.startswith("#")} <= ids


def test_links_lead_to_the_matrix_of_nodes(tmp_path: Path) -> None:
    """If there is a page over runs with this run."""
    from pytest_clustersmoke.report.page import page as render_page

    record = records.parsed(named(failed("a"), failed("b")))
    assert '<a href="../index.html#cluster-gilbreth-nodes">' in render_page(record, runs_page=True)
    assert "../index.html" not in render_page(record)


def test_card_is_a_warning_if_the_phases_passed() -> None:
    """Their findings are warnings."""
    port: dict[str, Any] = {"id": "rdma-port-errors", "severity": "warning", "primary": False}
    phases = [{**failed(name, **port), "outcome": "passed"} for name in ("a", "b")]
    text = page(named(*phases))
    assert '<li class="card warn" data-kind="named">' in text


def read(tmp_path: Path, *phases: records.Record) -> RunRecord:
    made = records.run(*phases)
    records.annotate(made, tmp_path)
    return records.parsed(made)


def isolated(name: str, *nodes: str, **changes: object) -> records.Record:
    """A job that tests on fewer nodes isolated."""
    found = {"id": ISOLATION_FINDING, "severity": "warning", "hosts": [*nodes], **changes}
    return records.phase(name, outcome="failed", findings=[records.finding(**found)])


def failed_check(name: str, node: str, severity: str = "failure") -> records.Record:
    return failed(name, id="gpu-ecc-errors", hosts=[node], severity=severity)


def wrong_model(name: str, nodes: int) -> records.Record:
    """A phase of which the last node has another GPU than the profile says."""
    found = records.finding(id="gpu-model-differs", hosts=[f"node{nodes - 1}"], ranks=[])
    return records.phase(name, nodes=nodes, outcome="failed", findings=[found])


def slow_and_red(name: str) -> records.Record:
    phase = slow(name)
    phase["criteria"]["test_slow"] = {"result": "failed", "text": "t", "judged": ["stragglers"]}
    return phase


def test_bad_node_is_named_beside_the_verdict(tmp_path: Path) -> None:
    """With what shows that it is bad: tests on fewer nodes, a check that failed, ranks so slow in
    two phases that the criterion failed. On the page and in the digest, where the verdict is still
    first."""
    made = named(isolated("a", "node2"), isolated("b", "node2"), failed_check("c", "node<3>"))
    title = "Bad nodes: node2 (isolated in a, b); node<3> (gpu-ecc-errors in c)"
    made["phases"][2]["scheduler_nodes"] = "node[0-2],node<3>"
    made["phases"][2]["nodes"][3] |= {"node": "node<3>", "host": "node<3>"}
    made = named(*made["phases"])
    head = page(made).partition("</header>")[0]
    assert html.escape(title) in head and title not in head
    digest = RunDigest.of(records.parsed(made), tmp_path)
    assert digest.lines()[:2] == [made["sentence"], title]
    assert digest.as_dict()["bad_nodes"]["node2"] == "isolated in a, b"
    one = records.parsed(named(slow_and_red("a"), slow_and_red("b")))
    assert title_bad_nodes(find_bad_nodes(one)) == "Bad node: node1 (slow-rank in a, b)"


@pytest.mark.parametrize(
    "phase",
    [
        failed("a"),
        slow("a"),
        slow_and_red("a"),
        isolated("a", primary=False),
        isolated("a"),
        {**failed_check("a", "node1", severity="warning"), "outcome": "passed"},
        {**isolated("a", "node1"), "fault": "rank-killed"},
        {**isolated("a", "node1"), "known": KNOWN},
        wrong_model("a", nodes=1),
    ],
    ids=[
        "job",
        "slow but met",
        "slow in one phase",
        "not found",
        "a link",
        "warning",
        "staged",
        "known",
        "profile",
    ],
)
def test_node_is_not_called_bad_without_proof(phase: records.Record) -> None:
    """A failed job or one slow rank, whose program may be the cause; a warning; an isolation that
    names no node; a staged or a known failure; a check that a wrong profile fails, on the job's
    only node."""
    made = named(phase)
    assert find_bad_nodes(records.parsed(made)) == {}
    assert "Bad node" not in page(made).partition("</header>")[0]


def test_node_that_fails_a_check_alone_is_bad() -> None:
    """Another node, of which the same check only warns, is not; and where other nodes of the job
    agree with the profile, the node is the cause."""
    phase = failed_check("a", "node1")
    port = {**phase["findings"][0], "id": "rdma-port-down"}
    phase["findings"] = [port, {**port, "hosts": ["node2"], "severity": "warning"}]
    phase["nodes"] = [records.node(number) for number in range(8)]
    phase["scheduler_nodes"] = "node[0-7]"
    made = records.parsed(named(phase))
    assert sorted(node.node for node in made.named_nodes) == ["node1", "node2"]
    assert find_bad_nodes(made) == {"node1": "rdma-port-down in a"}
    several = records.parsed(named(wrong_model("b", nodes=4)))
    assert find_bad_nodes(several) == {"node3": "gpu-model-differs in b"}


@pytest.mark.parametrize("kind", ["device-computes-wrongly", "gpu-errors-during-job"])
def test_node_whose_device_did_wrong_is_bad_where_a_criterion_failed(kind: str) -> None:
    """The finding itself only warns: its criterion fails."""
    phase = {**failed_check("a", "node1", severity="warning"), "outcome": "passed"}
    phase["findings"][0]["id"] = kind
    assert find_bad_nodes(records.parsed(named(phase))) == {}
    phase["criteria"]["test_gate"] = {"result": "failed", "text": "t"}
    assert find_bad_nodes(records.parsed(named(phase))) == {"node1": f"{kind} in a"}


def test_first_run_of_a_phase_on_a_node_is_told_from_the_usual_ones(tmp_path: Path) -> None:
    """Of four nodes, one is new to the phase; another phase had it before."""
    nights(tmp_path, 3, records.phase("a", nodes=2), records.phase("b", nodes=4))
    nights(tmp_path, 1, records.phase("a", nodes=3))
    record = read(tmp_path, records.phase("a"), records.phase("b"), records.phase("c"))
    first, second, new = (phase.places for phase in record.phases)
    assert first is not None and second is not None and new is not None
    assert (new.runs, new.is_all, new.first) == (0, True, [])
    assert (first.runs, first.is_all, first.first) == (4, True, ["node3"])
    assert first.nodes == {"node0": 4, "node1": 4, "node2": 1, "node3": 0}
    assert second.first == []


def test_usual_nodes_that_a_phase_does_not_have_are_kept(tmp_path: Path) -> None:
    """The most frequent first; names of nodes that are not known do not count."""
    nights(tmp_path, 2, records.phase("a", nodes=2))
    lost = records.phase("a", nodes=1)
    lost["nodes"][0]["node"] = "node 0"
    nights(tmp_path, 1, lost)
    phase = records.phase("a", nodes=1)
    phase["nodes"] = [{"node_rank": 0, "node": "other", "host": "other"}]
    (places,) = [one.places for one in read(tmp_path, phase).phases]
    assert places is not None and (places.runs, places.is_all) == (2, False)
    assert places.nodes == {"other": 0, "node0": 2, "node1": 2} and places.first == ["other"]


def test_run_without_known_nodes_may_have_been_anywhere(tmp_path: Path) -> None:
    """So a node is the first one only of the others; a run that never started was nowhere."""
    nights(tmp_path, 2, records.phase("a", nodes=2), records.phase("b", nodes=0))
    nights(tmp_path, 1, records.phase("a", nodes=0, outcome="never_ran"))
    whole, unknown = (one.places for one in read(tmp_path, *map(records.phase, "ab")).phases)
    assert whole is not None and (whole.runs, whole.is_all) == (2, True) and unknown is None
    nights(tmp_path, 1, records.phase("a", nodes=0, outcome="lost"))
    (partly,) = [one.places for one in read(tmp_path, records.phase("a")).phases]
    assert partly is not None and (partly.runs, partly.is_all) == (2, False)
    made = records.run(*map(records.phase, "abc"))
    records.annotate(made, tmp_path)
    text = page(made)
    part = text[text.index('id="places"') :]
    assert part.count("<td>not known</td>") == part.count("<td>none</td>") == 1


def test_page_says_what_ran_where(tmp_path: Path, browse: Browse) -> None:
    """In a table, and at the phase; the card of a failed job says that its node is new to it."""
    nights(tmp_path, 2, records.phase("a", nodes=3), records.phase("b"))
    made = named(failed("a", hosts=["node3"]), records.phase("b"), past=tmp_path)
    opened = browse(made, scripts=False)
    rows = opened.page.locator('table[data-table="places-of-phases"] tbody tr').all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["a", "node0, node1, node2, node3", "node3", "node0, node1, node2 in 2 of 2"],
        ["b", "node0, node1, node2, node3", "-", "node0, node1, node2, node3 in 2 of 2"],
    ]
    new = "ran on node3 for the first time"
    assert f"it {new}" in opened.page.locator('.card[data-kind="jobs"]').inner_text()
    assert f"This phase {new}." in opened.page.locator('section[data-phase="a"]').inner_text()
