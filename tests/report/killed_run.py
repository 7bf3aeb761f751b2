"""A run whose controller is killed."""

from __future__ import annotations

from pytest_clustersmoke.evidence.run_directory import RunDir, read_json
from pytest_clustersmoke.node.process_tree import alive
from tests.support.harness import Suite
from tests.support.waiting import wait_for


def killed(suite: Suite) -> str:
    """The name of a run of two phases: pytest was killed after the first, during the second."""
    suite.cluster(phases={"first": None, "second": None}, limits={"poll_s": 0.2, "max_jobs": 2})
    suite.phase("first")
    suite.phase("second", args={"wait_for": str(suite.path / "go")})

    def judged() -> bool:
        journal = suite.run_dir().journal
        return journal.exists() and '"test_all_done"' in journal.read_text()

    with suite.started() as running:
        running.wait_for_ranks("second")
        running.wait_for("the first phase's criterion in the journal", judged)
        running.process.kill()
        running.wait()
    (run,) = suite.runs()
    return run.name


def finish_job(suite: Suite, run: str) -> None:
    """Let the job end that the killed run left."""
    directory = RunDir(suite.shared / run).phase("second")
    process = read_json(directory.node_process(0)) or {}
    (suite.path / "go").touch()
    wait_for("the end of the job", lambda: not alive(process["pid"], process["started"]))
