"""`--cluster-screen` in place of the phases: what it refuses, collects and reports, with a fake
Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_clustersmoke.jobs.slurm_records import add_zone
from tests.fakes.slurm import FakeSlurm
from tests.support.harness import Suite, lines_with

SINFO = """\
gpu*|(null)|n1|idle|Unknown|Unknown|none
gpu*|(null)|n2|idle|Unknown|Unknown|none
gpu*|(null)|n3|drained|2026-11-01T08:00:00|root|fan
"""
# A node answers as soon as its job is submitted: the screen's directory is the script's.
SBATCH = """\
case $* in *screen.sh*) ;; *) exit 0;; esac
for word in $*; do
  case $word in
    --nodelist=*) node=${word#--nodelist=};;
    */screen.sh) folder=${word%/screen.sh};;
  esac
done
echo '{"node": "'$node'", "facts": {"node": "'$node'", "packages": {"torch": "2.5.1"}, "tmp": '"$(
  cat "$FAKE_SLURM/tmp.$node" 2>/dev/null || echo '{"path": "/tmp"}')"'}}' \
> $folder/answers/$node.json
echo 7
"""
FULL = '{"path": "/tmp", "error": "No space left on device", "instead": null}'


@pytest.fixture
def fake(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm with two idle nodes and a drained one, on which `suite` runs."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    made = FakeSlurm(folder)
    made.answers("sinfo", SINFO)
    made.folder.joinpath("sbatch.answer").write_text(SBATCH)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    hardware = {"gpu": "none", "device": "cpu", "gpus_per_node": 2}
    suite.profile |= {"backend": "slurm", "hardware": hardware}
    return made


def read_screen(suite: Suite) -> dict[str, object]:
    record: dict[str, object] = json.loads(
        (suite.reports / "latest-screen" / "report.json").read_text()
    )
    return record


def test_screen_needs_no_test_file_and_runs_no_phase(suite: Suite, fake: FakeSlurm) -> None:
    """sinfo is asked once, and each idle node has one job."""
    suite.phase("small")
    outcome = suite.run("--cluster-screen")
    assert outcome.ret == 0, outcome.output
    record = read_screen(suite)
    assert record["sentence"] == "FIT for 2 of 3 nodes; 1 not screened: 1 drained"
    assert record["phases"] == []
    assert fake.commands().count("sinfo") == 1 and fake.commands().count("sbatch") == 2
    assert lines_with(outcome, "2 nodes of partition gpu to screen")
    assert not (suite.reports / "latest").exists()
    request = json.loads((suite.run_dir().root / "screen" / "screen.json").read_text())
    assert request["partition"] == "gpu" and list(request["nodes"]) == ["n1", "n2", "n3"]


def test_node_that_fails_a_check_is_a_failed_test_with_its_next_step(
    suite: Suite, fake: FakeSlurm
) -> None:
    fake.folder.joinpath("tmp.n2").write_text(FULL)
    outcome = suite.run("--cluster-screen", "-rfs")
    assert outcome.ret == 1, outcome.output
    (line,) = lines_with(outcome, "FAILED ")
    assert line.startswith("FAILED screen::n2::system - n2: system: cannot create files in /tmp")
    assert lines_with(outcome, "Next step: free or repair that file system")
    skipped = f"screen:1: not screened: n3 is drained: fan [root@{add_zone('2026-11-01T08:00:00')}]"
    assert lines_with(outcome, skipped)
    assert lines_with(outcome, "leave out what is not fit: --exclude=n2")


def test_selected_nodes_are_those_that_are_screened(suite: Suite, fake: FakeSlurm) -> None:
    """The verdict names the selection."""
    outcome = suite.run("--cluster-screen", "-k", "n2")
    assert outcome.ret == 0, outcome.output
    assert read_screen(suite)["sentence"] == "FIT: 1 of 1 node passed; selected: n2"
    assert fake.commands().count("sbatch") == 1


def test_nodes_that_the_profile_does_not_use_get_no_job(suite: Suite, fake: FakeSlurm) -> None:
    """Another type of node in the partition is not to blame for being another."""
    fake.answers("sinfo", SINFO.replace("(null)|n1", "h100|n1"))
    suite.profile["slurm"] = {"constraint": "h100", "exclude": "n3"}
    outcome = suite.run("--cluster-screen")
    assert outcome.ret == 0, outcome.output
    assert read_screen(suite)["sentence"] == (
        "FIT for 1 of 3 nodes; 2 not screened: 1 other features, 1 excluded by the profile"
    )
    assert fake.commands().count("sbatch") == 1


def test_constraint_of_no_known_form_is_named(suite: Suite, fake: FakeSlurm) -> None:
    """It leaves no node out, which its reader must know."""
    suite.profile["slurm"] = {"constraint": "h100,ib"}
    outcome = suite.run("--cluster-screen", "--cluster-dry-run")
    assert lines_with(outcome, "`slurm.constraint: h100,ib` has none of the forms that sbatch")
    assert lines_with(outcome, "n1 (idle): one job, on this node alone")


def test_too_few_nodes_are_inconclusive(suite: Suite, fake: FakeSlurm) -> None:
    outcome = suite.run("--cluster-screen", "--cluster-screen-min", "90%")
    assert outcome.ret == 6, outcome.output
    assert lines_with(outcome, "at least 90% of the nodes must pass")


def test_dry_run_prints_nodes_and_script_and_submits_nothing(suite: Suite, fake: FakeSlurm) -> None:
    outcome = suite.run("--cluster-screen", "--cluster-dry-run")
    assert outcome.ret in (0, 5), outcome.output
    assert lines_with(outcome, "n1 (idle): one job, on this node alone")
    assert lines_with(outcome, "n3 (drained): not screened: n3 is drained: fan")
    assert lines_with(outcome, "#SBATCH --exclusive")
    assert "sbatch" not in fake.commands() and suite.runs() == []


@pytest.mark.parametrize(
    "words",
    [
        ["--cluster-prove"],
        ["--cluster-detach"],
        ["--cluster-here"],
        ["--cluster-avoid"],
        ["--cluster-set", "small.nodes=2"],
        ["--cluster-trace", "small"],
    ],
)
def test_other_ways_to_run_are_refused_beside_it(
    suite: Suite, fake: FakeSlurm, words: list[str]
) -> None:
    (line, *_) = suite.refused("--cluster-screen", *words)
    assert line.startswith(f"--cluster-screen does not run with {words[0]}: "), line


def test_cluster_without_slurm_is_refused(suite: Suite) -> None:
    """What to do there is in the message."""
    (line, *_) = suite.refused("--cluster-screen")
    assert "one has `backend: local`" in line and "expected a Slurm cluster" in line


def test_unknown_nodes_are_refused_with_a_near_name(suite: Suite, fake: FakeSlurm) -> None:
    (line, *_) = suite.refused("--cluster-screen", "--cluster-nodes", "n[1-2],n33")
    assert line == (
        "--cluster-nodes: the partition has no node n33; expected names of nodes, as sinfo -N "
        "lists them; did you mean `n3`?"
    )


def test_partition_without_a_node_is_refused(suite: Suite, fake: FakeSlurm) -> None:
    suite.profile["slurm"] = {"partition": "cpu"}
    (line, *_) = suite.refused("--cluster-screen")
    assert "no node in partition `cpu`" in line


def test_slurm_that_does_not_answer_is_refused(suite: Suite, fake: FakeSlurm) -> None:
    fake.answers("sinfo", err="slurm_load_partitions: Unable to contact slurm controller", rc=1)
    (line, *_) = suite.refused("--cluster-screen")
    assert "Unable to contact slurm controller" in line


@pytest.mark.parametrize("words", [["--cluster-nodes", "n1"], ["--cluster-screen-min", "90%"]])
def test_its_options_need_it(suite: Suite, words: list[str]) -> None:
    (line, *_) = suite.refused(*words)
    assert line == f"{words[0]} needs --cluster-screen"


@pytest.mark.parametrize("share", ["90", "101%", "x%", "-1%"])
def test_share_that_is_none_is_refused(suite: Suite, share: str) -> None:
    outcome = suite.run("--cluster-screen", f"--cluster-screen-min={share}")
    assert outcome.ret == 4 and "expected a percentage such as 90%" in outcome.output


def test_screen_whose_process_died_cannot_be_attached(suite: Suite, fake: FakeSlurm) -> None:
    """Its nodes are asked again by another screen."""
    assert suite.run("--cluster-screen").ret == 0
    outcome = suite.run("--cluster-attach", suite.run_dir().run_id)
    assert outcome.ret == 4
    assert "is one of --cluster-screen, whose nodes must be asked again" in outcome.output


def test_selection_that_leaves_no_node_ends_with_nothing_collected(
    suite: Suite, fake: FakeSlurm
) -> None:
    outcome = suite.run("--cluster-screen", "-k", "n99")
    assert outcome.ret == 5, outcome.output
    assert "sbatch" not in fake.commands() and suite.runs() == []
