"""Sample reports: `make pages` makes them, tests them in a browser, and takes pictures of them.

They are of real runs on this machine and on its Slurm, except where the name of a sample ends in
MADE: 512 ranks do not fit here, and no history of 45 nights is made in minutes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence.metric import BETWEEN
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.report import staged
from tests.report.browsing import written
from tests.report.nights import DAY_S
from tests.support import records
from tests.support.harness import SMOKE_TESTS, TRAIN, Outcome, Suite
from tests.support.labs import running_lab
from tests.support.screens import change_driver, make_slow, on_node, stop_process, use_fake_gpus
from tests.support.waiting import wait_for, wait_for_event

MADE = " (made)"
PLACES = "pages.json"  # sample -> its page, in the folder of the samples
NIGHTS = 45
PHASES = {"mlp_1gpu": None, "ddp_2gpu": None, "ddp_2node": {"nodes": 2, "gpus_per_node": 1}}
LIMITS_S = {"init": 120, "data": 120, "model": 120, "first_step": 120, "train_step": 60}
PATIENCE_S = 900.0
SCREENED = 64  # nodes
# How much faster the nights were than this machine is: far more than its own noise.
FASTER = 10
KILLED_AFTER = 20  # steps
SWEPT = 6  # nodes: 15 pairs, which is more than a picture labels
# Criteria of the speed of a machine that others use meanwhile.
UNTIMED = "not slow and not fast and not fall"
# A rank that ends at once on one node, in the phase and in the tests of the isolation.
ON_BAD_NODE = f"""
import os, runpy, sys
if os.environ["SLURMD_NODENAME"] == "{{bad}}":
    sys.exit("staged: this node is bad")
sys.path.insert(0, {str(TRAIN.parent)!r})
runpy.run_path({str(TRAIN)!r}, run_name="__main__")
"""


class SampleRuns:
    """The samples in a folder; each is made when its page is first asked for. What they start has
    the variable `marker`."""

    def __init__(self, folder: Path, marker: str) -> None:
        self.folder, self.marker = folder, marker
        self._pages: dict[str, Path] = {}

    def page(self, name: str) -> Path:
        """The page of a sample."""
        if name not in self._pages:
            place = self.folder / name.removesuffix(MADE).replace(" ", "-")
            place.mkdir(parents=True)
            self._pages[name] = SAMPLES[name](self, place, self.marker)
            pages = self._pages.items()
            places = {name: os.path.relpath(page, self.folder) for name, page in pages}
            (self.folder / PLACES).write_text(json.dumps(places, indent=1))
        return self._pages[name]


def _make_suite(place: Path, marker: str, phases: dict[str, Any], **keys: Any) -> Suite:
    """A suite whose phases are those of smoke_tests/, of the sizes for a laptop."""
    suite = Suite(place, marker, real_torchrun=True)
    suite.profile |= {"sizes": "small", "phases": dict(phases), "stage_limits_s": LIMITS_S, **keys}
    return suite


def _ladder(
    suite: Suite, names: Sequence[str] = ("test_mlp.py", "test_ddp.py")
) -> list[str | Path]:
    """The words that run phases of smoke_tests/ as those of this suite."""
    files = [SMOKE_TESTS / name for name in names]
    return ["-c", suite.path / "pytest.ini", "--rootdir", suite.path, *files]


def _run(suite: Suite, verdict: str, *words: str | Path) -> Path:
    """The page of a run, which must have this verdict."""
    return _page_of(suite.run_apart(*words, patience_s=PATIENCE_S), verdict)


def _page_of(outcome: Outcome, verdict: str) -> Path:
    record = outcome.record()
    assert record["verdict"] == verdict, f"{record['sentence']}\n{outcome.output}"
    return outcome.files.report.resolve() / "index.html"


def fit(_: SampleRuns, place: Path, marker: str) -> Path:
    suite = _make_suite(place, marker, PHASES, history_check="warn")
    return _run(suite, "FIT", *_ladder(suite))


def killed_rank(_: SampleRuns, place: Path, marker: str) -> Path:
    """Rank 1 of two nodes is killed while it trains."""
    long = {"nodes": 2, "gpus_per_node": 1, "args": {"steps": 200_000}}
    suite = _make_suite(place, marker, {"ddp_2node": long})
    with suite.started(*_ladder(suite)) as running:
        running.wait_for_ranks("ddp_2node", 2)
        events = suite.run_dir().phase("ddp_2node").rank_events(1)
        running.wait_for(
            f"step {KILLED_AFTER}",
            lambda: any(each["step"] >= KILLED_AFTER for each in read_events(events).named("step")),
        )
        os.kill(wait_for_event(events, "start")["pid"], signal.SIGKILL)
        return _page_of(running.wait(PATIENCE_S), "UNFIT")


def inconclusive(_: SampleRuns, place: Path, marker: str) -> Path:
    """References are required, and there are none."""
    suite = _make_suite(place, marker, {"mlp_1gpu": None}, require=["references"])
    return _run(suite, "INCONCLUSIVE", *_ladder(suite))


def collectives(_: SampleRuns, place: Path, marker: str) -> Path:
    """The curve of each collective over six nodes, and each pair of them."""
    phases = {"allreduce_multinode": {"nodes": SWEPT, "gpus_per_node": 1}}
    hardware = {"gpu": "any", "device": "cpu", "gpus_per_node": 1}
    suite = _make_suite(place, marker, phases, hardware=hardware)
    page = _run(suite, "FIT", *_ladder(suite, ["test_allreduce.py"]), "-k", UNTIMED)
    text = page.read_text()
    assert 'data-chart="curves"' in text and text.count("<tr data-one=") == SWEPT * (SWEPT - 1) // 2
    return page


def three_faults(_: SampleRuns, place: Path, marker: str) -> Path:
    """A slow rank, a wrong transport and a lost third, by a fake rank program."""
    return _page_of(run_with_three_faults(Suite(place, marker), Suite.run_apart)[1], "UNFIT")


def slower_than_45_nights(samples: SampleRuns, place: Path, marker: str) -> Path:
    """A real run after 44 nights that are copies of the FIT sample, in which one phase was
    faster."""
    report = samples.page("FIT").parent / "report.json"
    suite = _make_suite(place, marker, PHASES, history_check="fail")
    for number in range(1, NIGHTS):
        record = json.loads(report.read_text())
        _make_night(record, number)
        records.store_run(record, suite.reports)
    page = _run(suite, "UNFIT", *_ladder(suite))
    assert "below the median" in page.read_text()
    return page


def _make_night(record: dict[str, Any], number: int) -> None:
    """Turn a record into that of a night so many days ago."""
    began = record["begun"] - number * DAY_S
    record |= {"written": record["written"] - number * DAY_S, "begun": began}
    record["run_id"] = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(began))}-{number:06x}"
    for phase in record["phases"]:
        is_slower = phase["phase"] == "ddp_2gpu"  # the others vary as much as a busy machine does
        spread = (number * 7 % 5 - 2) / (200 if is_slower else 8)
        factor = (FASTER if is_slower else 1) * (1 + spread)
        for metric in phase["metrics"].values():
            if metric["unit"] in ("steps/s", "samples/s"):
                metric["value"] *= factor


def nights(samples: SampleRuns, place: Path, marker: str) -> Path:
    """The page over the runs of the sample above, which has a folder of its own."""
    place.rmdir()
    return samples.page(f"UNFIT by history{MADE}").parent.parent / "index.html"


def ranks_512(_: SampleRuns, place: Path, marker: str) -> Path:
    """With the criteria that what stands out turns red."""
    record = staged.large()
    (phase,) = record["phases"]
    texts = {
        "test_no_rank_falls_behind": "rank 341 falls behind",
        "test_transports_between_nodes_are_those_expected": "NET/Socket/0, expected NET/IB*",
        "test_throughput_meets_the_reference": phase["metrics"]["busbw_gb_per_s"]["text"],
    }
    kinds = ("stragglers", BETWEEN, "references")
    for (name, text), kind in zip(texts.items(), kinds, strict=True):
        phase["criteria"][name] = {"result": "failed", "text": text, "judged": [kind]}
    record["sentence"] = f"UNFIT: 1 of 1 phases failed ({phase['phase']}: {', '.join(texts)})"
    failed = [record["sentence"].partition("(")[2][:-1]]
    return written(record | {"failed": failed, "backend": "slurm"}, place)


def never_started(_: SampleRuns, place: Path, marker: str) -> Path:
    """A job that Slurm does not start before the queue's limit."""
    with running_lab(lab.LabSettings(name="pages", nodes=1)) as running:
        suite = _make_suite(place, marker, {"mlp_1gpu": {"slurm": {"begin": "now+1hour"}}})
        suite.use_slurm(running.slurm_conf)
        suite.profile["limits"] |= {"queue_wait_s": 10}
        return _run(suite, "INCONCLUSIVE", *_ladder(suite))


def screen(_: SampleRuns, place: Path, marker: str) -> Path:
    """Of 64 nodes one does not answer, one cannot write its /tmp, one has another driver, one is
    slow, one is drained."""
    with running_lab(lab.LabSettings(name="pages", nodes=SCREENED)) as running:
        suite = Suite(place, marker)
        suite.use_slurm(running.slurm_conf)
        use_fake_gpus(suite, place, limit_s=45)
        stopped, unwritable, odd, slow, drained = running.nodes[7::11][:5]
        suite.profile["setup"] += [
            stop_process(stopped),
            on_node(unwritable, "export TMPDIR=/nowhere-at-all"),
            change_driver(odd, place),
            make_slow(slow, place),
        ]
        words = "sinfo", "-h", "-N", "-o", "%T"
        wait_for("idle nodes", lambda: {*suite.slurm(*words).split()} == {"idle"} or None)
        suite.slurm("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=fans")
        outcome = suite.run_apart("--cluster-screen", patience_s=PATIENCE_S)
    page = suite.reports.resolve() / "latest-screen" / "index.html"
    assert outcome.ret == 1, outcome.output
    return page.resolve()


def isolation(_: SampleRuns, place: Path, marker: str) -> Path:
    """Two phases on four nodes fail on one of them, which tests on fewer nodes then find: one card
    of the page is about this node."""
    with running_lab(lab.LabSettings(name="pages", nodes=4)) as running:
        suite = Suite(place, marker)
        suite.use_slurm(running.slurm_conf)
        script = place / "train_wide.py"
        script.write_text(ON_BAD_NODE.format(bad=running.nodes[2]))
        suite.phase("wide", script=str(script), nodes=4)
        suite.phase("wide_again", script=str(script), nodes=4)
        del suite.profile["phases"]["small"]
        page = _run(suite, "UNFIT", "--cluster-isolate")
    assert 'data-kind="named"' in page.read_text()
    return page


def run_with_three_faults(
    suite: Suite, run: Callable[[Suite], Outcome], good: float = 10.0, bad: float = 7.0
) -> tuple[Outcome, Outcome]:
    """Two runs on two nodes with two ranks each: a healthy one, then one with a slow rank, TCP
    where InfiniBand is expected, and a lower rate. Rank program and NCCL's logs are fakes."""
    reference = {"value": good, "lower": "-10 %", "unit": "steps/s", "source": "an earlier run"}
    profile: dict[str, Any] = {
        "expect": {"small": {"intra_node": ["P2P/*"], "inter_node": ["NET/IB*"]}},
        "references": {"small": {"steps_per_s": reference}},
    }
    suite.cluster(**profile)
    suite.phase(
        base="Trained, TalkedInsideNodes, TalkedBetweenNodes",
        body="pass",
        nodes=2,
        gpus_per_node=2,
        args={"nccl": "none", "slow": -1, "rate": good, "steps": 3},
    )
    first = run(suite)
    # In the profile: a phase that --cluster-set changes is not compared with its references.
    suite.cluster(**profile, phases={"small": {"args": {"nccl": "socket", "slow": 1, "rate": bad}}})
    return first, run(suite)


SAMPLES: dict[str, Callable[[SampleRuns, Path, str], Path]] = {
    "FIT": fit,
    "UNFIT by a killed rank": killed_rank,
    f"UNFIT by three faults{MADE}": three_faults,
    f"UNFIT by history{MADE}": slower_than_45_nights,
    f"45 nights{MADE}": nights,
    "INCONCLUSIVE": inconclusive,
    "collectives": collectives,
    f"512 ranks{MADE}": ranks_512,
    "never started": never_started,
    "screen of 64 nodes": screen,
    "isolation": isolation,
}
ON_SLURM = ("never started", "screen of 64 nodes", "isolation")
