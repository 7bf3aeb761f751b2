"""index.html as text: complete, escaped, without requests, small; its libraries are documented."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import time
from pathlib import Path

import jinja2
import pytest
from jinja2.bccache import bc_magic

from pytest_clustersmoke.report import page as page_module
from pytest_clustersmoke.report.node_records import find_differences
from tests.report import staged
from tests.report.page_samples import (
    RUNS,
    Elements,
    hostile_run,
    page,
    proof,
)
from tests.support import records


@pytest.mark.parametrize("name", RUNS)
def test_any_record_renders_without_network(name: str) -> None:
    """All links are fragments or relative paths into the report."""
    elements = Elements(page(RUNS[name]()))
    assert elements.all("h1") and elements.all("main")
    for tag, attributes in elements.tags:
        assert not {"src", "srcset", "action", "poster", "background"} & set(attributes), tag
        assert not [key for key in attributes if key.startswith("on")], attributes
    links = {str(link["href"]) for link in elements.all("a")}
    files = {link for link in links if not link.startswith("#")}
    own = {"report.json", "junit.xml", "metrics.prom", "run.json", "journal.jsonl"}
    assert own <= files
    for link in files - own:
        path, _, line = link.partition("#:~:text=")  # the line of the file that is quoted
        assert re.fullmatch(r"phases/[A-Za-z0-9_.~%/-]+", path) and ".." not in path, link
        assert re.fullmatch(r"[A-Za-z0-9_.~%]*", line), link
    assert [link["href"] for link in elements.all("link")] == ["data:,"]
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


def test_policy_allows_only_own_scripts() -> None:
    """The policy allows only the page's own scripts, by their hashes."""
    elements = Elements(page(staged.run()))
    (policy,) = [
        str(element["content"])
        for element in elements.all("meta")
        if element.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in elements.scripts
    }
    assert set(rules["script-src"].split()) == hashes and len(hashes) == 8


def test_hostile_text_stays_text() -> None:
    """No text of a record opens an element or leaves an attribute, and its control characters are
    replaced."""
    html = page(hostile_run())
    sound = Elements(page(staged.run()))
    elements = Elements(html)
    assert len(elements.scripts) == len(sound.scripts) == 8
    assert not elements.all("img") and not elements.all("iframe")
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in html
    own = html[: html.index("<script>")]
    assert [char for char in own if not char.isprintable() and char != "\n"] == []


def test_metrics_are_exact_to_the_last_digit() -> None:
    """The page holds each value and reference, with its bound, exactly as recorded."""
    record = staged.run()
    html = page(record)
    tags = [attributes for _, attributes in Elements(html).tags]
    values = {tag["data-value"] for tag in tags if tag.get("data-value")}
    for phase in record["phases"]:
        for metric in phase["metrics"].values():
            assert json.dumps(metric["value"]) in values
            if reference := metric["reference"]:
                assert {json.dumps(reference["value"]), json.dumps(reference["low"])} <= values


def test_huge_text_is_cut() -> None:
    """The page shows at most MAX_TEXT characters of a text."""
    phase = records.phase(reason="x" * 10**6, outcome="failed")
    assert len(page(records.run(phase))) < len(page(records.run())) + 10**5


@pytest.mark.parametrize("file", ["/etc/passwd", "../../other", "a/../../b", ""])
def test_evidence_outside_the_report_is_not_linked(file: str) -> None:
    """A path that is absolute or leaves the phase's folder is shown without a link."""
    line = {"file": file, "line": 3, "text": "words"}
    phase = records.phase(outcome="failed", findings=[records.finding(evidence=[line])])
    html = page(records.run(phase))
    assert f"<code>{file}:3</code>" in html
    links = [str(link) for link in Elements(html).all("a")]
    assert not [link for link in links if "passwd" in link or ".." in link]


def test_evidence_is_linked_with_its_line() -> None:
    """Evidence links to its file below phases/, and to the quoted line of it; special characters
    are percent-encoded."""
    line = {"file": "nodes/0001/a b?#.log", "line": 12, "text": "exitcode: -9"}
    phase = records.phase(outcome="failed", findings=[records.finding(evidence=[line])])
    html = page(records.run(phase))
    path = "phases/zero1_4node/nodes/0001/a%20b%3F%23.log#:~:text=exitcode%3A%20%2D9"
    link = f'<a href="{path}">nodes/0001/a b?#.log:12</a>'
    assert link in html and '<pre tabindex="0">exitcode: -9</pre>' in html


def test_similar_phase_names_have_different_anchors() -> None:
    """Names that differ only in characters that an id cannot hold get different anchors."""
    html = page(records.run(records.phase("a b"), records.phase("a-b")))
    assert 'href="#phase-a-b"' in html and 'href="#phase-a-b-2"' in html


def test_first_part_has_changes_known_and_unmeasured() -> None:
    """Changes, known failures with their last day, missing measurements, `Partial report`."""
    html = page(staged.run(partial="the controller was killed"))
    for words in (
        "driver on node2: 550.54.15 to 550.90.07",
        "switch 4 awaits its firmware",
        "until 2026-12-01",
        "mlp_1gpu: references not measured",
        "it needs 8 GPUs per node, and gilbreth has 2",
        "Partial report.",
        "the controller was killed",
    ):
        assert words in html


def test_nodes_that_differ_are_marked() -> None:
    """Only the cell of the node that differs from most is marked."""
    html = page(staged.run())
    table = html[html.index('data-table="nodes"') :]
    table = table[: table.index("</table>")]
    marked = [row for row in table.split("<tr>") if "differs" in row]
    assert len(marked) == 1 and "node2" in marked[0] and "550.90.07" in marked[0]


def test_facts_of_wrong_type_do_not_break_the_page() -> None:
    """A node whose `gpus` is not a list, and one whose name has 5,000 digits, have a row."""
    nodes = records.facts_of([records.phase()])
    nodes[1]["facts"]["gpus"] = 7
    nodes[2]["node"] = "9" * 5000
    html = page(records.run(nodes=nodes))
    table = html[html.index('data-table="nodes"') :]
    assert table[: table.index("</table>")].count('<tr><th scope="row">') == 4


def test_remarks_on_known_entries_are_shown() -> None:
    """Remarks are in the section of known failures, even if nothing is known."""
    remark = "known: zero1_4node::job has expired on 2026-11-01: cluster.yaml:71"
    html = page(records.run(known_remarks=[remark]))
    part = html[html.index('id="known"') :]
    part = part[: part.index("</section>")]
    assert f"<li>{remark}</li>" in part and "No failure is acknowledged" not in part


def test_proof_shows_its_gates() -> None:
    """It has each gate with its status, and each fault that is not staged here with the reason."""
    html = page(proof())
    assert "NOT PROVEN" in html and "stayed green" in html and "one GPU a node" in html
    assert 'data-value="12.25">12.2<' in html


def test_512_ranks_stay_small() -> None:
    """64 nodes of 8 ranks, every pair of nodes measured: less than 2.5 MB."""
    record = staged.large()
    topology = record["phases"][0]["topology"]
    assert topology is not None and len(topology["groups"]) == 64 + math.comb(64, 2)
    assert len(page(record).encode()) < 2.5e6


def listed(html: str, table: str, row: str) -> int:
    """How often the tables of this name match the pattern `row`."""
    parts = html[html.index("<body>") : html.index("<script>")].split(f'data-table="{table}"')[1:]
    return sum(len(re.findall(row, part[: part.index("</table>")])) for part in parts)


def test_a_whole_ladder_of_512_ranks_stays_below_5_mb() -> None:
    """64 nodes with all facts, eight phases of 512 ranks: rendered within 10 s of CPU time."""
    record = staged.ladder()
    begun = time.process_time()
    html = page(record)
    assert time.process_time() - begun < 10
    assert len(html.encode()) < 3e6
    assert listed(html, "ranks", '<tr data-rank="341"') == 8
    assert listed(html, "nodes-ranks", "<tr ") == 8 * 64
    assert html.count("the figures of every rank are in report.json") == 8
    assert html.count("; 511 more are in report.json") == 8
    assert listed(html, "links", "expected NET/IB") == 8


def test_nothing_wrong_is_left_out() -> None:
    """Eight phases, no rank done, every link unexpected: all are named, in less than 5 MB."""
    record = staged.ladder(all_wrong=True)
    html = page(record)
    assert len(html.encode()) < 5e6
    assert html.count("<p>Not done: 0-511</p>") == 8
    topology = record["phases"][0]["topology"]
    assert topology is not None and len(topology["links"]) == 2000
    alone, ends = listed(html, "links", "<tr "), listed(html, "bundles", r"\d+→\d+")
    assert alone + ends == 8 * 2000
    pairs = listed(html, "group-bundles", r"\d+: ")
    assert pairs == 8 * len(topology["groups"])


def test_up_to_128_ranks_all_are_listed() -> None:
    """The page lists all ranks and links of 16 nodes, and refers to no further ones."""
    html = page(staged.large(nodes=16))
    assert listed(html, "ranks", "<tr data-rank=") == listed(html, "links", "<tr ") == 128
    assert listed(html, "groups", "<tr ") == 136 and listed(html, "nodes-ranks", "<tr ") == 0
    assert "more are in report.json" not in html


def test_many_differing_packages_are_counted() -> None:
    """With 2,000 odd packages on one node, the table of differences says how many are left out."""
    record = staged.ladder(1)
    record["nodes"][5]["facts"]["packages"] = {f"odd{number}": "1" for number in range(2000)}
    parsed = find_differences(records.parsed(record).nodes)
    record["differences"] = [difference.model_dump() for difference in parsed]
    html = page(record)
    assert len(html.encode()) < 2e6
    assert f"and {len(record['differences']) - 200} more facts that differ between nodes" in html


def test_vendored_libraries_match_the_readme() -> None:
    """Each vendored file starts with the version in the table, and has its licence."""
    folder = Path(page_module.__file__).parent / "html" / "vendor"
    rows = re.findall(
        r"^\| `(\S+)` \| \[.*?\] ?\(?.*?\| (\S+) \| ISC, `(\S+)` \|$",
        (folder / "README.md").read_text(),
        re.MULTILINE,
    )
    assert {row[0] for row in rows} == {path.name for path in folder.glob("*.js")}
    for name, version, licence in rows:
        assert f" v{version} " in (folder / name).read_text()[:80]
        assert "Permission to use, copy, modify" in (folder / licence).read_text()


def render_with_cache(folder: Path) -> str:
    """A template of this folder, by an environment that has not seen it yet."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), bytecode_cache=page_module.CompiledTemplates(folder)
    )
    return environment.get_template("small.j2").render(name="anna")


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    (tmp_path / "small.j2").write_text("hello {{ name }}")
    return tmp_path


def test_template_is_compiled_once(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process loads what the first one compiled, until the template changes."""
    assert render_with_cache(templates) == "hello anna"
    assert len([*(templates / "__pycache__").iterdir()]) == 1
    with monkeypatch.context() as patch:
        patch.delattr(jinja2.Environment, "compile")
        assert render_with_cache(templates) == "hello anna"
    (templates / "small.j2").write_text("goodbye {{ name }}")
    assert render_with_cache(templates) == "goodbye anna"


@pytest.mark.parametrize("kept", [0, 10, 24, 40, -1])
def test_damaged_compiled_template_is_compiled_again(templates: Path, kept: int) -> None:
    """A file that was cut off fails no report."""
    render_with_cache(templates)
    (compiled,) = (templates / "__pycache__").iterdir()
    whole = compiled.read_bytes()
    compiled.write_bytes(whole[:kept])
    assert render_with_cache(templates) == "hello anna"
    assert compiled.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"cabsent\nx\n.", b"N)R.", b"."])
def test_garbage_in_place_of_a_compiled_template_fails_no_report(
    templates: Path, damage: bytes
) -> None:
    """Behind a valid head: unpickling it raises errors of many kinds."""
    render_with_cache(templates)
    (compiled,) = (templates / "__pycache__").iterdir()
    whole = compiled.read_bytes()
    compiled.write_bytes(bc_magic + damage)
    assert render_with_cache(templates) == "hello anna"
    assert compiled.read_bytes() == whole


def test_templates_that_cannot_be_kept_are_compiled_each_time(templates: Path) -> None:
    """As in a package that belongs to another user."""
    (templates / "__pycache__").write_text("no folder")
    assert [render_with_cache(templates) for _ in range(2)] == ["hello anna"] * 2


def test_criteria_that_a_failed_job_skipped_are_one_row() -> None:
    """One cause is said once, with the names of all; a criterion with a reason of its own keeps
    its row, and so does each that failed."""
    phase = records.phase("a", outcome="failed", reason="exit 1")
    why = {"result": "skipped", "text": "job failed, see test_a.py::TestA::job"}
    phase["criteria"] = {
        "job": {"result": "failed", "text": "exit 1"},
        **{f"test_{number}": why for number in range(28)},
        "test_own": {"result": "skipped", "text": "not here"},
    }
    text = page(records.run(phase, verdict="UNFIT"))
    assert text.count(why["text"]) == text.count("28 criteria<") == 1
    assert all(f"test_{number}" in text.replace("<wbr>", "") for number in range(28))
    assert text.count('<tr data-result="skipped">') == 2
    assert text.count('<tr data-result="failed">') == 1


def test_criteria_that_passed_are_one_row() -> None:
    """With the names of all behind it; each that is known to fail keeps its row."""
    phase = records.phase("a")
    phase["criteria"] = {
        **{f"test_{number}": {"result": "passed", "text": ""} for number in range(28)},
        "test_known": {"result": "known", "text": "slow"},
    }
    text = page(records.run(phase)).replace("<wbr>", "")
    assert text.count('<tr data-result="passed">') == text.count('<tr data-result="known">') == 1
    assert "28 criteria<" in text and all(f"test_{number}" in text for number in range(28))


def test_page_says_what_to_do_next() -> None:
    """Commands as code, hostile text escaped; a run that is fit has no such part."""
    phase = records.phase("a", last_good="<b>")
    phase["criteria"]["test_rate"] = {"result": "failed", "text": "t", "judged": ["references"]}
    run = {"run_id": "20261118-1", "backend": "slurm"}
    _, _, part = page(records.run(phase, verdict="UNFIT", **run)).partition('id="next"')
    part = part.partition("</section>")[0].replace("<wbr>", "")
    assert "<code>clustersmoke compare &lt;b&gt; 20261118-1</code>" in part
    options = [f'<span class="option">--cluster{word}</span>' for word in ("", "-screen")]
    assert f"<code>pytest {options[0]} gilbreth {options[1]}</code>" in part and "`" not in part
    assert 'id="next"' not in page(records.run())


def test_lone_backtick_of_a_message_stays() -> None:
    """glibc writes one before what it quotes."""
    found = records.finding(cause="run `<a>` again: Assertion `n > 0' failed")
    text = page(records.run(records.phase("a", outcome="failed", findings=[found])))
    assert "<h4>run <code>&lt;a&gt;</code> again: Assertion `n &gt; 0&#39; failed</h4>" in text


def test_phase_that_no_test_defines_is_said_once() -> None:
    """It is required and missing, and does not run: what is missing is said. Other phases that do
    not run, and what is missing of a phase that is defined, stay."""
    absent = "gilbreth lists the phase zero9, but no collected test defines it; did you mean zero1"
    other = "zero3 does not run on gilbreth"
    missing = [
        {"phase": "zero9", "kind": "", "reason": "listed; did you mean zero1"},
        {"phase": "a", "kind": "data", "reason": "data not measured"},
    ]
    record = records.run(
        records.phase("a"),
        verdict="INCONCLUSIVE",
        counts={"undefined_phases": ["zero9", "zero8"], "is_whole": True},
        missing=[*missing, {**missing[0], "phase": "zero8"}],
        absent_phases=[absent, other],
    )
    record["not_measured"] = [str(each) for each in records.parsed(record).missing]
    _, _, part = page(record).partition('id="unmeasured"')
    part, _, _ = part.partition("</section>")
    listed = [line.strip() for line in re.findall(r"<li>(.*?)</li>", part)]
    assert [line.replace("<wbr>", "").split(":")[0] for line in listed] == [
        *("zero9", "a", "zero8"),
        other,
    ]


def test_card_of_a_screened_node_links_to_its_row() -> None:
    """Its name is the link, of which each says something else; many share a card."""
    names = [f"gpu-n{number:02}" for number in range(8)]
    nodes: list[dict[str, object]] = [
        {"node": name, "state": "failing", "group": "", "reason": "r", "slurm_state": "idle"}
        | {"job_id": "7", "seconds": 0.5, "checks": {}}
        for name in names
    ]
    screen = {"partition": "gpu", "minimum": 0.0, "limit_s": 60, "nodes": nodes}
    text = page(records.run(verdict="UNFIT", phases=[], phases_chosen=[], screen=screen))
    card, _, _ = text.partition('id="stands-out"')[2].partition("</section>")
    assert re.findall(r'<a href="#([^"]+)">([^<]+)</a>', card.replace("<wbr>", "")) == [
        (f"node-{name}", name) for name in names
    ]
    assert all(text.count(f'<tr id="node-{name}">') == 1 for name in names)
