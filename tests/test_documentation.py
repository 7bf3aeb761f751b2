"""The documents are correct: examples run, links have targets, the reference is complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.harness import ROOT, Suite
from tests.support.leftovers import none_left

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
REFERENCE = "\n".join(path.read_text() for path in sorted((DOCS / "reference").glob("*.md")))
# What test_contract.py compares with the code.
CONTRACT = yaml.safe_load((ROOT / "tests" / "contract.yaml").read_text())
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\S+\.py)\n")
PHASE_NAME = re.compile(r"@pytest\.mark\.phase\(\s*\"(\w+)\"")
# A file of this repository, as named in text and commands.
OWN_FILE = re.compile(
    r"(?<![\w/-])((?:benchmarks|pytest_clustersmoke|smoke_tests|tests)/[\w./-]*\w)"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Criteria that need a GPU, references, a past, other ranks, `proof: twin`, or `peaks: once`.
SKIPPABLE = {
    "test_twin_run_gives_the_same_bits",
    "test_metrics_are_as_in_the_past",
    "test_other_ranks_compute_the_same_gradients",  # needs three ranks
    "test_each_gpu_is_as_fast_as_it_was",
    "test_other_references_are_met",
    "test_devices_reach_their_peaks",
    "test_hardware_stays_healthy",
    "test_throughput_meets_the_reference",
    "test_memory_meets_the_reference",
    "test_transports_inside_nodes_are_those_expected",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


def example_files() -> dict[str, str]:
    """File name -> text, of every Python block that starts with a file name."""
    files: dict[str, str] = {}
    for path in PAGES:
        for text in blocks(path, "python"):
            if match := FILE_NAME.match(text):
                assert match[1] not in files, f"{match[1]} is on two pages"
                files[match[1]] = text
    return files


EXAMPLES = example_files()
PHASES = sorted(name for text in EXAMPLES.values() for name in PHASE_NAME.findall(text))


# Examples


def profile() -> dict[str, Any]:
    """The profile that the page on phases shows, with the phases of all examples."""
    page = DOCS / "how-to" / "write-a-phase.md"
    (text,) = [text for text in blocks(page, "yaml") if "clusters:" in text]
    clusters: dict[str, Any] = yaml.safe_load(text)
    clusters["clusters"]["mine"]["phases"] = {name: {"timeout_s": 300} for name in PHASES}
    return clusters


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All examples as one suite, run on this machine."""
    folder = tmp_path_factory.mktemp("documentation")
    for name, text in EXAMPLES.items():
        folder.joinpath(name).parent.mkdir(exist_ok=True)
        folder.joinpath(name).write_text(text)
    with none_left() as (marker, _):
        suite = Suite(folder, marker)
        suite.cluster(json.dumps(profile(), indent=1))
        variables = {"HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        with suite.started("smoke_tests", cluster="mine", **variables) as running:
            outcome = running.wait(300)
        assert outcome.ret == 0, outcome.output
        yield outcome.record()


@pytest.mark.slow
def test_examples_are_fit_as_a_suite(report: dict[str, Any]) -> None:
    """A run of all examples is FIT, and runs every phase of them."""
    assert report["verdict"] == "FIT"
    assert sorted(phase["phase"] for phase in report["phases"]) == PHASES


@pytest.mark.slow
@pytest.mark.parametrize("name", PHASES)
def test_example_meets_every_measured_criterion(name: str, report: dict[str, Any]) -> None:
    """No criterion of an example fails, and none is skipped that this machine can measure."""
    (phase,) = [phase for phase in report["phases"] if phase["phase"] == name]
    results = {name: criterion["result"] for name, criterion in phase["criteria"].items()}
    skipped = {name for name, result in results.items() if result == "skipped"}
    assert skipped <= SKIPPABLE and "failed" not in results.values(), results


def test_pages_have_the_promised_examples() -> None:
    """A phase, an adapted DDP script and an adapted Trainer script; the front page has one, too."""
    of_page = {name_of(path): FILE_NAME.findall("".join(blocks(path, "python"))) for path in PAGES}
    for page in ("write-a-phase", "adapt-a-ddp-script", "adapt-a-trainer-script"):
        assert len(of_page[f"docs/how-to/{page}.md"]) == 2, page
    assert len(of_page["README.md"]) == 2


PROFILES = [
    pytest.param(text, id=f"{name_of(path)}-{index}")
    for path in PAGES
    for index, text in enumerate(blocks(path, "yaml"))
    if text.startswith("clusters:")
]


@pytest.mark.parametrize("text", PROFILES)
def test_shown_profile_is_accepted(text: str, suite: Suite) -> None:
    """Each cluster.yaml that a page shows in full is read without an error."""
    suite.path.joinpath("cluster.yaml").write_text(text)
    assert suite.run("--cluster-list", cluster="").ret == 0


# Links


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = BLOCK.sub("", path.read_text())
    targets: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", re.sub(r"\\(.)", r"\1", heading).lower())
        anchor = kept.strip().replace(" ", "-")
        same = sum(other == anchor or other.startswith(f"{anchor}-") for other in targets)
        targets.add(f"{anchor}-{same}" if anchor in targets else anchor)
    return targets


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link leads to a file of the repository, and its anchor to a heading in it."""
    broken = []
    for link in LINK.findall(BLOCK.sub("", path.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_named_files_exist(path: Path) -> None:
    """Files of the repository that a page names exist, except those that its examples create."""
    named = set(OWN_FILE.findall(path.read_text())) - set(EXAMPLES)
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_promise_names_a_test() -> None:
    """Each row has a case, what is promised of it, and tests."""
    lines = (DOCS / "promises.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    named = [row[0] for row in rows if re.search(r"`tests/\w+/test_\w+\.py`", row[-1])]
    assert [row[0] for row in rows if len(row) != 3 or row[0] not in named] == []


def test_index_has_every_page() -> None:
    """docs/README.md links each page, once."""
    links = LINK.findall((DOCS / "README.md").read_text())
    listed = [link for link in links if link.endswith(".md") and not link.startswith("../")]
    pages = [path.relative_to(DOCS).as_posix() for path in PAGES if path.is_relative_to(DOCS)]
    assert sorted(listed) == sorted(page for page in pages if page != "README.md")


def test_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_front_page_leads_to_what_a_phase_and_a_lab_can_do() -> None:
    """Its last table names the settings and commands, each beside the page on it."""
    table = (ROOT / "README.md").read_text().partition("\n## More\n")[2]
    names = ["launcher", "resume", "after", "sweep", "accelerate", "deepspeed", "srun", "real"]
    assert missing(names, table) == []
    assert "docs/reference/field-guide.md" in LINK.findall(table)


# What the reference must name


def bare(item: str) -> str:
    """A name without its parameters or its value."""
    return re.split(r"[(=\s]", item)[0]


def missing(names: list[str], text: str) -> list[str]:
    """The names that appear nowhere in the text as code."""
    code = [*re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)), *(b for _, b in BLOCK.findall(text))]
    words = {word for span in code for word in re.findall(r"[\w-]+", span)}
    return [name for name in names if name not in words]


def test_options_and_marks_are_in_the_reference() -> None:
    """pytest's options, the ini option, the marks and the fixture."""
    names = [bare(item) for kind in ("options", "ini_options") for item in CONTRACT[kind]]
    names += [bare(item) for kind in ("markers", "fixtures") for item in CONTRACT[kind]]
    assert missing(names, (DOCS / "reference" / "options.md").read_text()) == []


def test_options_with_a_path_are_written_with_an_equals_sign() -> None:
    """With a space, pytest takes the path for a test or for its root directory."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    spaced = re.compile(r"--cluster-(?:config|report-dir) +[\w./~$-]+[\w`]")
    found = {page.name: spaced.findall(page.read_text()) for page in pages}
    assert not any(found.values()), found
    text = (DOCS / "reference" / "options.md").read_text()
    assert "`--cluster-config=PATH`" in text and "`--cluster-report-dir=DIR`" in text


def test_subcommands_and_their_options_are_in_the_reference() -> None:
    """Each subcommand of `clustersmoke` has a section that names its options."""
    text = (DOCS / "reference" / "options.md").read_text()
    sections = dict(re.findall(r"^### `(clustersmoke[^`]*)`\n(.*?)(?=^#|\Z)", text, re.M | re.S))
    for command, items in CONTRACT["commands"].items():
        options = [option for item in items for option in re.findall(r"--[a-z-]+", item)]
        if command.strip() != "clustersmoke":
            assert missing(options, sections[command.strip()]) == [], command


@pytest.mark.parametrize(
    ("kind", "page"),
    [("rank_api", "rank.md"), ("criteria_api", "criteria.md")],
)
def test_public_classes_are_in_the_reference(kind: str, page: str) -> None:
    """Each public class and each of its members."""
    text = (DOCS / "reference" / page).read_text()
    for group, items in CONTRACT[kind].items():
        assert missing([group.rstrip("."), *map(bare, items)], text) == [], group


def test_phases_and_their_criteria_are_in_the_reference() -> None:
    """Each phase of the suite, and each criterion of its class."""
    text = (DOCS / "reference" / "criteria.md").read_text()
    criteria = {name for names in CONTRACT["suite"].values() for name in names}
    assert missing([bare(name) for name in CONTRACT["phases"]], text) == []
    assert missing(sorted(criteria - {"job"}), text) == []


def test_phase_members_are_in_the_reference() -> None:
    """The members of the `phase` fixture."""
    names = [bare(item).removeprefix("phase.") for item in CONTRACT["phase_api"]]
    own = [name for name in names if not re.search(r"[.\[]", name)]
    assert missing(own, (DOCS / "reference" / "criteria.md").read_text()) == []


def test_metrics_are_in_the_reference() -> None:
    text = (DOCS / "reference" / "metrics.md").read_text()
    assert missing([bare(item) for item in CONTRACT["metrics"]], text) == []


def test_findings_are_in_the_reference() -> None:
    """Each id of a finding, except those with `*`, which stand for several."""
    names = [name for name in CONTRACT["findings"] if "*" not in name]
    assert missing(names, REFERENCE) == []
