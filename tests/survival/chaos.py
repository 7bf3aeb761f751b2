"""Runs on a lab of whose processes some are killed all the time: clients, ranks, slurmstepd, slurmd
and slurmctld. Each job says itself when it starts and ends, and every report must agree with that.

    python -m tests.survival.chaos --seed 7                 200 jobs in runs of 20
    python -m tests.survival.chaos --seed 7 --accounting    the same with slurmdbd

The schedule follows from the seed and is printed first. A killed client is followed by one that
attaches the run, or that reaps it. At the end the queue is empty and no process of a job is left.
The exit status is 1 if something was violated; each violation has a line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence.run_directory import RunDir, read_json
from tests.support.harness import outer_variables, pytest_command
from tests.support.strikes import CLIENT, Strike, StruckLab, draw_strikes
from tests.support.truth import PROGRAM, TRUTH, find_violations, read_report, read_truth
from tests.support.waiting import Patience

NODES, CAP = 4, 8
LATEST_S = 15.0  # of a kill, from the start of its run
SHARE = 0.9  # of the runs in which a kind of process is killed
# Without the time in which work waited for a core.
CLIENT_S, REAP_S, QUIET_S = 300.0, 120.0, 90.0
TICK_S = 0.05
JUDGED = (0, 1, 6)  # exit statuses of a client that has judged its run
CLASS = """
@pytest.mark.phase("{name}", script="{script}", launcher="none", args={{"seconds": {seconds}}})
class Test{title}:
    def test_all_done(self, phase):
        assert phase.ranks_done == 1
"""


@dataclass
class Chaos:
    """The runs, which share a directory of runs, one of reports and a Slurm."""

    struck: StruckLab
    folder: Path
    drawn: random.Random
    violations: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def truth(self) -> Path:
        return self.folder / "truth.jsonl"

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def say(self, line: str) -> None:
        print(line, flush=True)

    def violate(self, line: str) -> None:
        self.violations.append(line)
        self.say(f"VIOLATION: {line}")

    def write_suite(self, number: int, jobs: int, in_array: bool) -> Path:
        """A suite of its own for a run. Phases that ask for the same are an array."""
        suite = self.folder / f"run{number}"
        suite.mkdir()
        names = [f"r{number}p{index}" for index in range(jobs)]
        self.names += names
        (suite / "program.py").write_text(PROGRAM)
        (suite / "pytest.ini").write_text("[pytest]\n")
        classes = [
            CLASS.format(
                name=name,
                title=name.title(),
                script=suite / "program.py",
                seconds=round(self.drawn.uniform(1, 3), 2),
            )
            for name in names
        ]
        (suite / "test_chaos.py").write_text("import pytest\n" + "".join(classes))
        own = [None if in_array else {"slurm": {"time": 5 + i}} for i in range(jobs)]
        profile = self._profile(dict(zip(names, own, strict=True)))
        (suite / "cluster.yaml").write_text(json.dumps({"clusters": {"chaos": profile}}))
        return suite

    def _profile(self, phases: dict[str, Any]) -> dict[str, Any]:
        return {
            "backend": "slurm",
            "shared_dir": str(self.shared),
            "peaks": "never",
            # No GPUs: a slurmctld that was started again refuses them for some seconds.
            "hardware": {"gpu": "none", "device": "cpu", "gpus_per_node": 1},
            "slurm": {"partition": "main", "cpus_per_task": 1, "time": 5},
            "limits": {"max_jobs": CAP, "poll_s": 1, "queue_wait_s": 180},
            "env": {"common": {"set": {TRUTH: str(self.truth)}}},
            "phases": phases,
        }

    def environ(self) -> dict[str, str]:
        outer = set(outer_variables())
        own = {name: value for name, value in os.environ.items() if name not in outer}
        return {**own, "SLURM_CONF": str(self.struck.lab.slurm_conf)}

    def slurm(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environ(), capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else f"{words[0]} failed: {done.stderr}"

    def runs(self) -> set[str]:
        """Those that came as far as to submit jobs: another has nothing to attach or reap."""
        about = {path.parent.name: read_json(path) or {} for path in self.shared.glob("*/run.json")}
        return {run_id for run_id, known in about.items() if "report" in known}

    # The end

    def check_reports(self) -> None:
        """Each job stands in one report, with an outcome that agrees with what it says itself."""
        starts, seen = read_truth(self.truth), Counter[str]()
        for report in sorted(self.reports.glob("*/report.json")):
            if report.parent.is_symlink():
                continue
            record = json.loads(report.read_text())
            for reported in read_report(record, RunDir(self.shared / report.parent.name)):
                seen[reported.phase] += 1
                for line in find_violations(reported, starts, self.struck.hits):
                    self.violate(f"{report.parent.name}: {line}")
        for name in self.names:
            if seen[name] != 1:
                self.violate(f"{name} stands in {seen[name]} reports")

    def check_quiet(self) -> None:
        """Nothing is queued, and no process of a job is left."""
        patience = Patience(QUIET_S)
        while True:
            queued = self.slurm("squeue", "-h", "-o", "%i %j %T").splitlines()
            left = self.struck.list_job_processes()
            if not queued and not left:
                return
            if patience.is_over:
                break
            time.sleep(0.5)
        for line in queued:
            self.violate(f"still queued: {line}")
        for process in left:
            command = Path(f"/proc/{process.pid}/cmdline")
            line = command.read_bytes().replace(b"\0", b" ").decode() if command.exists() else "?"
            self.violate(f"still there: pid {process.pid}: {line}")

    def mend_nodes(self) -> None:
        """Bring nodes back that Slurm took out of service, as an operator would."""
        for line in self.slurm("sinfo", "-N", "-h", "-p", "main", "-o", "%N %T").splitlines():
            name, _, state = line.partition(" ")
            if state.startswith(("drain", "down", "fail")):
                self.say(f"  {name} was {state}, and is resumed")
                self.slurm("scontrol", "update", f"nodename={name}", "state=resume")


@dataclass
class ChaosRun:
    """One run: its client, those that follow it, and what is killed meanwhile."""

    chaos: Chaos
    number: int
    suite: Path
    strikes: list[Strike]
    clients: int = 0
    run_id: str = ""
    _attaches: bool = True

    def play(self) -> None:
        """Run to the end, whatever is killed."""
        before, begun = self.chaos.runs(), time.monotonic()
        client, killed, patience = self._start(), False, Patience(CLIENT_S)
        while True:
            if client.poll() is not None:
                self.run_id = max(self.chaos.runs() - before, default="")
                if not killed:
                    break
                killed = False
                if not self._is_over():
                    if self.run_id and not self._attaches:
                        self._reap()
                        break
                    client = self._follow()
                    continue
                break
            if patience.is_over:
                self.chaos.violate(f"run {self.number} did not end within {CLIENT_S:g} s")
                client.kill()
                client.wait()
                break
            self.chaos.struck.restart()
            killed = self._strike(client, time.monotonic() - begun) or killed
            time.sleep(TICK_S)
        self.chaos.struck.await_daemons()
        self._tell(client.returncode, time.monotonic() - begun)

    def _strike(self, client: subprocess.Popen[bytes], elapsed_s: float) -> bool:
        """Make the kills that are due; return whether the client was killed."""
        killed = False
        for strike in [strike for strike in self.strikes if strike.at_s <= elapsed_s]:
            if strike.kind == CLIENT:
                client.send_signal(signal.SIGKILL)
                self._attaches, killed = strike.attaches, True
            elif self.chaos.struck.strike(strike) is None:
                continue  # there is none now
            self.strikes.remove(strike)
            self.chaos.say(f"  {elapsed_s:4.1f} s: {strike.kind} killed")
        return killed

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        self.clients += 1
        reports = f"--cluster-report-dir={self.chaos.reports}"
        command = pytest_command(*words, reports, cluster="chaos")
        with self._output.open("wb") as output:
            return subprocess.Popen(
                command,
                cwd=self.suite,
                env=self.chaos.environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def _output(self) -> Path:
        return self.suite / f"client{self.clients}.out"

    def _follow(self) -> subprocess.Popen[bytes]:
        """Attach the run; start anew where it had not begun."""
        return self._start("--cluster-attach", self.run_id) if self.run_id else self._start()

    def _is_over(self) -> bool:
        """Whether the client had written its report before it was killed."""
        report = self.chaos.reports / self.run_id
        return bool(self.run_id) and (report / "journal.jsonl").exists()

    def _reap(self) -> None:
        """Ask until Slurm confirms that nothing is left."""
        patience = Patience(REAP_S)
        while True:
            reaper = self._start("--cluster-reap", self.run_id)
            while reaper.poll() is None:
                self.chaos.struck.restart()
                time.sleep(TICK_S)
            if reaper.returncode == 0:
                return
            if patience.is_over:
                words = self._output.read_text(errors="replace").strip()
                self.chaos.violate(f"run {self.run_id} could not be reaped: {words}")
                return

    def _tell(self, status: int, wall_s: float) -> None:
        """Say how the run ended; no client of it ends by a mistake."""
        if status not in (*JUDGED, -signal.SIGKILL):
            tail = "\n".join(self._output.read_text(errors="replace").splitlines()[-15:])
            self.chaos.violate(f"run {self.number}: exit status {status}:\n{tail}")
        report = self.chaos.reports / self.run_id / "report.json"
        outcomes = Counter[str]()
        if self.run_id and report.exists():
            outcomes.update(phase["outcome"] for phase in json.loads(report.read_text())["phases"])
        counts = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
        rest = "".join(f"; no {strike.kind} to kill" for strike in self.strikes)
        self.chaos.say(
            f"  run {self.run_id or '-'}: status {status}, {self.clients} clients, {wall_s:.0f} s: "
            f"{counts or 'not reported yet'}{rest}"
        )


def play(chaos: Chaos, schedule: Sequence[list[Strike]], jobs: int) -> None:
    """All runs, then one in which nothing is killed, then the checks."""
    for number, strikes in enumerate(schedule):
        chaos.say(f"run {number}")
        chaos.mend_nodes()
        suite = chaos.write_suite(number, jobs, in_array=number % 2 == 0)
        ChaosRun(chaos, number, suite, list(strikes)).play()
    chaos.say("last run, in which nothing is killed")
    time.sleep(5.0)  # slurmd registers
    chaos.mend_nodes()
    last = len(schedule)
    ChaosRun(chaos, last, chaos.write_suite(last, 1, in_array=False), []).play()
    chaos.check_quiet()
    chaos.check_reports()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=20, help="of each run")
    parser.add_argument("--accounting", action="store_true")
    args = parser.parse_args()
    if reason := lab.find_obstacle(args.accounting):
        print(f"no lab can be started on this machine: {reason}", file=sys.stderr)
        return 1
    drawn = random.Random(args.seed)
    schedule = [draw_strikes(drawn, LATEST_S, SHARE) for _ in range(args.runs)]
    print(f"seed {args.seed}: {args.runs} runs of {args.jobs} jobs")
    for number, strikes in enumerate(schedule):
        print(f"run {number}: {'; '.join(map(str, strikes)) or 'nothing is killed'}", flush=True)
    settings = lab.LabSettings(
        name=f"chaos-{os.getpid()}", nodes=NODES, gpus_per_node=0, accounting=args.accounting
    )
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/var/tmp"))
    running = lab.start_lab(settings)
    try:
        chaos = Chaos(StruckLab(running), folder, drawn)
        play(chaos, schedule, args.jobs)
    finally:
        lab.stop_lab(running.name)
    kills = Counter(hit.kind for hit in chaos.struck.hits)
    print(f"killed: {', '.join(f'{count} {kind}' for kind, count in kills.most_common())}")
    print(f"{len(chaos.violations)} violations in {time.strftime('%Y-%m-%d')}, seed {args.seed}")
    if chaos.violations:
        print(f"the runs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
