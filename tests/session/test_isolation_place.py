"""Where the tests of --cluster-isolate run (Slurm's commands are fakes here)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clustersmoke.evidence.locks import ControllerFence
from pytest_clustersmoke.evidence.run_directory import PhaseDir, create_phase
from pytest_clustersmoke.evidence.run_journal import FencedJournal
from pytest_clustersmoke.jobs.slurm_backend import ALLOCATION
from pytest_clustersmoke.jobs.slurm_client import SlurmClient
from pytest_clustersmoke.session.isolation_place import OTHERS, IsolationPlace
from tests.fakes.slurm import FakeSlurm
from tests.support.evidence import make_phase, make_profile

NODES = ("n0", "n1")
# Said before the wait, which may be long.
ASKS = "isolating small: asks for 2 nodes (n0, n1) at once; waits 30 s at most"
SHOWN = "JobId=7 UserId=ann(1001) JobState={} Reason=None NodeList=n[0-1] EndTime=Unknown"


class Place:
    """The place of a phase's tests, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.slurm, self.said = FakeSlurm(folder), list[str]()
        self.slurm.answers("sbatch", "7\n")
        self.slurm.answers("scontrol", SHOWN.format("RUNNING"))
        profile = make_profile(folder, backend="slurm")
        phase = make_phase(profile, nodes=2)
        directory = PhaseDir(folder / "run1" / "phases" / "small")
        create_phase(directory, 2)
        self.fence = ControllerFence(directory.run)
        journal = FencedJournal(directory.run, self.fence)
        session: Any = SimpleNamespace(fence=self.fence, journal=journal)
        client = SlurmClient(self.slurm.environ)
        self.place = IsolationPlace(phase, profile, session, client, directory, self.said.append)

    def option(self) -> Any:
        """The allocation that a test on n0 runs in; None if it is a job."""
        found = self.place.list_options(("n0",)).get(ALLOCATION)
        return found.value if found is not None else None


@pytest.fixture
def made(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_tests_are_steps_until_one_needs_a_node_of_another_phase(made: Place) -> None:
    """Its job could not have the nodes that are held. They are asked for once."""
    made.place.prepare(NODES, [("n0",), ("n1",)], 60)
    assert made.option() == "7" and made.place.job_id == "7"
    steps = "isolating small: tests are steps of job 7, which holds 2 nodes"
    assert made.said == [ASKS, steps]
    made.place.prepare(NODES, [("n0", "other")], 60)
    assert made.option() is None and made.place.why == OTHERS
    made.place.prepare(NODES, [("n0",)], 60)
    assert made.slurm.commands().count("sbatch") == 1
    assert [call for call in made.slurm.calls() if call.startswith("scancel")] == ["scancel 7"]


def test_tests_are_jobs_where_slurm_refuses_the_allocation(made: Place) -> None:
    made.slurm.answers("sbatch", err="sbatch: error: Batch job submission failed: no", rc=1)
    made.place.prepare(NODES, [NODES], 60)
    assert made.option() is None and "submission failed: no" in made.place.why
    assert made.said == [ASKS, f"isolating small: tests are jobs: {made.place.why}"]


def test_process_that_lost_its_run_leaves_the_end_to_its_watch(made: Place) -> None:
    """As it waits for nodes: pytest ends with the words and the status of any such process, and
    cancels nothing of the run, which is another's now."""
    made.slurm.answers("scontrol", SHOWN.format("PENDING"))
    successor = made.fence.successor
    made.slurm.folder.joinpath("scontrol.answer").write_text(f"echo '{{}}' > '{successor}'\n")
    made.place.prepare(NODES, [NODES], 60)
    assert made.fence.is_superseded and made.said == [ASKS]
    made.place.release()
    assert "scancel" not in made.slurm.commands()
