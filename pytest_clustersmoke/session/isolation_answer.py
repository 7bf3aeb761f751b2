"""The answer of `--cluster-isolate`, and the finding that says it."""

from __future__ import annotations

from dataclasses import dataclass

from ..evidence.finding import ISOLATION_FINDING, Finding
from ..text import WARNING, plural, shorten

# The kinds of answers.
NODES, LINK, SWITCH, TOGETHER, PAIR = "nodes", "link", "switch", "only together", "pair"
UNSTABLE, NOT_AGAIN, JOB, UNKNOWN = "comes and goes", "did not fail again", "job", "not isolated"

MOST_NAMED = 16  # in a sentence


@dataclass(frozen=True)
class IsolationAnswer:
    """What is bad: the nodes that are named (of a link its two ends), or the switch; and what
    supports it, a sentence each. `suspects`: of an answer that names nothing, the fewest nodes that
    failed together."""

    kind: str
    nodes: tuple[str, ...] = ()
    switch: str = ""
    support: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The answer in a few words, for JUnit's property."""
        named, suspects = ", ".join(self.nodes), shorten(self.suspects, MOST_NAMED)
        return {
            NODES: named,
            LINK: f"link between {' and '.join(self.nodes)}",
            SWITCH: f"switch {self.switch}",
            TOGETHER: f"only together: {suspects}",
            PAIR: f"one of the pair {suspects}, or the link between them",
            UNSTABLE: f"comes and goes, last among {suspects}",
            NOT_AGAIN: "did not fail again",
            JOB: "the job itself",
        }.get(self.kind, f"not isolated, among {suspects}" if self.suspects else "not isolated")

    def as_record(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "nodes": [*self.nodes],
            "switch": self.switch,
            "suspects": [*self.suspects],
            "support": [*self.support],
        }


def name_set(group: tuple[str, ...], times: int) -> IsolationAnswer:
    """Nodes that failed only together, so often."""
    often = f"{shorten(group, MOST_NAMED)} failed together each time, {plural(times, 'time')}"
    if len(group) == 2:
        why = "each of the two passed with other nodes"
        return IsolationAnswer(LINK, group, support=(often, why))
    why = "without any one of them the others passed"
    return IsolationAnswer(TOGETHER, suspects=group, support=(often, why))


def name_switch(switch: str, failed: list[str], others: int, also_fail: bool) -> IsolationAnswer:
    """A switch of which these nodes failed; `others`: the job's nodes elsewhere."""
    lines = [f"{shorten(failed, MOST_NAMED)} below it failed with nodes elsewhere"]
    if others > 1:
        how = "failed, too" if also_fail else "passed"
        lines.append(f"the {plural(others, 'node')} elsewhere {how} without it")
    return IsolationAnswer(SWITCH, switch=switch, support=tuple(lines))


def explain_answer(answer: IsolationAnswer, tests: int, where: str) -> Finding:
    """The finding of the phase's job. `where`: the file with the tests, below the phase."""
    support = "; ".join(answer.support)
    cause = f"isolation: {answer}, by {plural(tests, 'test')}{f': {support}' if support else ''}"
    hosts = answer.nodes if answer.kind == NODES else ()
    return Finding(
        ISOLATION_FINDING,
        cause,
        f"{_advise(answer)}; the tests are in {where}",
        primary=answer.kind in (NODES, LINK, SWITCH, TOGETHER, JOB),
        hosts=hosts,
        detail={"answer": str(answer), **answer.as_record()},
        severity=WARNING,
    )


def _advise(answer: IsolationAnswer) -> str:
    names = ",".join(answer.nodes)
    return {
        NODES: f"leave {' and '.join(answer.nodes)} out until repaired: `sbatch --exclude={names}`",
        LINK: "check the path between the two: ports, cables and the routes of both",
        SWITCH: f"check switch {answer.switch}, its uplinks and its cables; no single node is bad",
        TOGETHER: "look at what these nodes share when they run together: a rail, a route, a ring",
        PAIR: "give the run a phase that passes on other nodes, then isolate again",
        UNSTABLE: "repeat the phase; each failure narrows it down",
        NOT_AGAIN: "repeat the phase; that it passed once does not make its nodes healthy",
        JOB: "look at the program, its settings and what all nodes share; no node is to blame",
    }.get(answer.kind, "see why the tests could not go on")
