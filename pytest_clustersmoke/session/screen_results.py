"""The jobs of a screen as a session's suite needs them, and the record of what they found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..config.profile import Profile
from ..criteria.screen_clearance import list_cleared
from ..criteria.screen_judge import CheckJudgement, judge_screen
from ..criteria.screen_peaks import FAILED, PEAKS, UNASKED, judge_peaks
from ..evidence.locks import ControllerFence
from ..evidence.node_measurement import read_measurement
from ..evidence.run_directory import RunDir
from ..evidence.run_journal import FencedJournal
from ..evidence.screen_files import NodeAnswer, ScreenFiles
from ..evidence.screen_record import (
    ANSWER,
    FAILING,
    NO_ANSWER,
    NOT_SCREENED,
    PASSING,
    ScreenCheckRecord,
    ScreenedNode,
    ScreenRecord,
)
from ..evidence.telemetry import parse_text
from ..evidence.transport_rule import TransportRule
from ..jobs.screen_jobs import INTERRUPTED, NodeEnd, ScreenJobs
from ..jobs.screen_plan import PlannedNode
from ..text import FAILURE
from .cancellation import Leftover
from .live.board import Board

UNREACHED = NodeEnd("not screened", INTERRUPTED, "interrupted")
UNREADABLE = "its answer cannot be read"


class ScreenSession:
    """The jobs of one screen, from the first to the last: EndableJobs."""

    def __init__(self, run: RunDir, jobs: ScreenJobs) -> None:
        """Raises OSError."""
        self._jobs = jobs
        self.fence = ControllerFence(run)
        self.journal = FencedJournal(run, self.fence)
        self.board = Board(())
        self.ends: dict[str, NodeEnd] = {}

    def run(self, nodes: Sequence[str], report: Callable[[str, NodeEnd], object]) -> None:
        """Screen these nodes; `ends` has what is known at any time."""

        def take(node: str, end: NodeEnd) -> None:
            self.ends[node] = end
            self.journal.beat()
            self.journal.write("screened", node=node, job_id=end.job_id, end=end.kind, why=end.why)
            report(node, end)

        self._jobs.run(nodes, take)

    @property
    def is_superseded(self) -> bool:
        return self.fence.is_superseded

    def cancel(self) -> None:
        self._jobs.stop()

    hurry = cancel

    def close(self, why: str = "") -> Leftover:
        """Cancel what is left; returns what may still run."""
        left = Leftover(tuple(self._jobs.close()))
        if not left:
            with contextlib.suppress(OSError):  # a full disk must not hide the verdict
                self.journal.write("closed")
        return left


def make_spec(profile: Profile) -> dict[str, Any]:
    """What the checks of a node need to know of the profile, as of a phase on two nodes: some of
    them hold only where nodes talk to each other."""
    between = TransportRule.of(None, inside=False)
    return {
        "backend": profile.backend,
        "device": profile.hardware.device,
        "gpu": profile.hardware.gpu,
        "ranks_per_node": profile.hardware.gpus_per_node,
        "nodes": 2,
        "infiniband": between.expects_infiniband(profile.hardware.interconnect),
    }


def build_record(
    profile: Profile,
    partition: str,
    minimum: float,
    plan: Sequence[PlannedNode],
    ends: Mapping[str, NodeEnd],
    files: ScreenFiles,
) -> ScreenRecord:
    """The record of a screen, by the ends of its jobs and what the nodes answered."""
    read = {name: files.read_answer(name) for name, end in ends.items() if end.kind == "answered"}
    answers = {name: answer for name, answer in read.items() if answer is not None}
    judged = judge_screen(list(answers.values()), make_spec(profile), files.answer)
    cut = {name: end.why for name, end in ends.items() if end.kind == "answered" and end.why}
    peaks = _judge_devices(profile, answers, files, cut)
    judged = {name: {**checks, PEAKS: peaks[name]} for name, checks in judged.items()}
    nodes = [_describe_node(node, ends.get(node.name, UNREACHED), answers, judged) for node in plan]
    cleared = list_cleared(judged)
    for node in nodes:
        node.cleared = cleared.get(node.node, []) if node.state == PASSING else []
    return ScreenRecord(
        partition=partition, minimum=minimum, limit_s=profile.limits.screen_s, nodes=nodes
    )


def _judge_devices(
    profile: Profile, answers: Mapping[str, NodeAnswer], files: ScreenFiles, cut: Mapping[str, str]
) -> Mapping[str, CheckJudgement]:
    if profile.peaks == "never":
        return dict.fromkeys(answers, UNASKED)
    from ..diagnose.log_causes import find_log_cause

    measured = {name: read_measurement(files, name) for name in answers}
    return judge_peaks(
        list(answers.values()),
        measured,
        profile.limits.screen_peaks_s,
        cut,
        explain=lambda node: find_log_cause(files.log(node)),
    )


def _describe_node(
    plan: PlannedNode,
    end: NodeEnd,
    answers: Mapping[str, NodeAnswer],
    judged: Mapping[str, Mapping[str, CheckJudgement]],
) -> ScreenedNode:
    about: dict[str, Any] = {
        "node": plan.name,
        "slurm_state": plan.state,
        "job_id": end.job_id,
        "seconds": end.seconds,
    }
    if plan.skip:
        about |= {"job_id": "", "group": plan.skip, "reason": plan.why, "state": NOT_SCREENED}
        return ScreenedNode.model_validate({**about, "checks": {}})
    if end.kind == "not screened":
        about |= {"group": end.word, "reason": end.why, "state": NOT_SCREENED}
        return ScreenedNode.model_validate({**about, "checks": {}})
    answer = answers.get(plan.name)
    if answer is None:
        why = end.why or UNREADABLE
        checks = {
            ANSWER: ScreenCheckRecord(result="failed", text=why, finding=ANSWER, severity=FAILURE)
        }
        about |= {"reason": f"{ANSWER}: {why}", "state": NO_ANSWER, "checks": checks}
        return ScreenedNode.model_validate(about)
    made = {ANSWER: ScreenCheckRecord(result="passed", text="")}
    made |= {name: _describe_check(check) for name, check in judged[plan.name].items()}
    failed = [check for check in judged[plan.name].values() if check.result == "failed"]
    failed.sort(key=lambda check: not check.is_definite)  # the ledger goes by the first
    peaks = judged[plan.name].get(PEAKS)
    return ScreenedNode.model_validate(
        {
            **about,
            "state": FAILING if failed else PASSING,
            "reason": "; ".join(f"{check.id}: {check.text}" for check in failed),
            "cpu_s": answer.cpu_s,
            "boot_id": (parse_text(answer.facts.get("boot_id")) or "")[:64],
            "checks": made,
            "unmeasured": peaks.text if peaks and FAILED in peaks.open else "",
        }
    )


def _describe_check(check: CheckJudgement) -> ScreenCheckRecord:
    text = f"{check.text}. Next step: {check.fix}" if check.fix else check.text
    made = ScreenCheckRecord(result=check.result, text=text)
    if check.id:
        made.finding = check.id
        made.severity = check.severity or FAILURE
    return made
