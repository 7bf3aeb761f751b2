"""A run whose controller is killed."""

from __future__ import annotations

from tests.support.harness import Suite


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
        running.wait(10)
    (run,) = suite.runs()
    return run.name
