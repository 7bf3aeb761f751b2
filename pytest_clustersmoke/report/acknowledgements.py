"""Acknowledged failures: which entry of `known` in cluster.yaml answers for one, and until when.

A known failure is neither green nor red: the verdict is never better than INCONCLUSIVE. An entry
answers only for what it names. A finding that names no host, a host that nobody acknowledged: these
stay failures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from ..config.hostlist import expand_hostlist
from ..config.profile import Profile
from ..config.waivers import Known
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import RunDir, read_json
from ..text import Problem, near
from .verdict import JOB, KnownFailure, RunTally

# A job that was cancelled was ended by us: that is nobody's failure.
NO_FAILURE = {"passed", "cancelled"}
# What a finding calls a host that it could not tell.
NO_HOST = {"unknown", ""}


class Acknowledgements:
    """The entries of one profile, as they hold on the day on which the run began."""

    def __init__(self, profile: Profile, run_id: str) -> None:
        # By the day in the run's name, which all its processes go by.
        day = datetime.strptime(run_id[:8], "%Y%m%d").date()
        self._phases = tuple(profile.phases)
        places = [profile.where("known", index) for index in range(len(profile.known))]
        entries = list(zip(profile.known, places, strict=True))
        self._held = [(entry, where) for entry, where in entries if day <= entry.until]
        self._expired = [(entry, where) for entry, where in entries if day > entry.until]

    def answer(self, result: PhaseResult, criterion: str) -> KnownFailure | None:
        """The entry for a criterion of this phase that failed. Where the job did not pass, no
        criterion was judged: what answers for the job answers for them."""
        if result.outcome == "passed":
            return self._of_criterion(result.name, criterion)
        if result.outcome in NO_FAILURE:
            return None
        return self._of_criterion(result.name, JOB) or self._of_nodes(result)

    def _of_criterion(self, phase: str, criterion: str) -> KnownFailure | None:
        found = (one for one in self._held if _names(one[0], phase, criterion))
        return next((_failure(f"{phase}: {criterion}", [one]) for one in found), None)

    def _of_nodes(self, result: PhaseResult) -> KnownFailure | None:
        """The entries that answer for every host that failed by itself; none where a finding names
        no host, or where no cause is left."""
        by_host = self._by_host(result)
        entries = [entry for entry in by_host.values() if entry is not None]
        if not by_host or len(entries) < len(by_host):
            return None
        found = [one for index, one in enumerate(entries) if one not in entries[:index]]
        return _failure(f"{result.name}: {JOB}", found)

    def beside(self, result: PhaseResult) -> list[str]:
        """The hosts that nobody answers for, where somebody does for others of the same job."""
        by_host = self._by_host(result)
        new = [host for host, entry in by_host.items() if entry is None]
        known = [host for host, entry in by_host.items() if entry is not None]
        if not new or not known or self.answer(result, JOB):
            return []
        names = ", ".join(host or "findings without a host" for host in new)
        return [f"`known` covers {', '.join(known)}, but not {names}"]

    def _by_host(self, result: PhaseResult) -> dict[str, tuple[Known, str] | None]:
        """Each host that failed by itself, with who answers for it. One that fails in the same way
        as another is no primary cause, and no victim either. "" stands for a finding without."""
        own = [one for one in _findings(result.job) if _is_own(one)]
        if not any(one.get("primary") for one in own):
            return {}
        hosts = sorted(set().union(*(_hosts(one) or {""} for one in own)))
        return {
            host: next((one for one in self._held if _is_node(one[0], host)), None)
            for host in hosts
        }

    # What is told of the entries themselves

    def misnamed(self, criteria: Mapping[str, Collection[str] | None]) -> list[Problem]:
        """Entries that name no criterion of their phases. `criteria` are all of each phase that was
        collected; where a phase was not, nothing is known to be wrong."""
        found = []
        for entry, where in self._held:
            phases = _phases(entry, self._phases)
            collected = [criteria.get(one) for one in phases]
            if not phases or None in collected:
                continue
            names = list(dict.fromkeys([JOB, *(name for one in collected for name in one or ())]))
            if not any(_is_criterion(entry, name) for name in names):
                found.append(
                    Problem(
                        f"`{entry.criterion}` matches no criterion of {', '.join(phases)}",
                        where,
                        f"one of {', '.join(f'`{name}`' for name in names)}",
                        near(str(entry.criterion), names),
                    )
                )
        return found

    def remarks(self, tally: RunTally, run: RunDir) -> list[str]:
        """Entries that have expired; after a full run also those that nothing needed."""
        expired = [
            f"the entry of `known` at {where} expired on {entry.until}: renew or remove it"
            for entry, where in self._expired
        ]
        return [*expired, *self._unneeded(tally, run)] if _is_full(tally) else expired

    def _unneeded(self, tally: RunTally, run: RunDir) -> Iterator[str]:
        jobs = {name: read_json(run.phase(name).result) or {} for name in tally.phases}
        hosts = {host for job in jobs.values() for one in _findings(job) for host in _hosts(one)}
        for entry, where in self._held:
            unneeded = f"nothing failed that the entry of `known` at {where} covers"
            if entry.node is None:
                if _was_judged(entry, tally) and not _failed(entry, tally):
                    yield f"{unneeded}: remove it?"
            elif not any(_is_node(entry, host) for host in hosts):
                had = any(_is_node(entry, node) for name in jobs for node in _nodes(run, name))
                yield f"{unneeded}{': remove it?' if had else '; no job ran on that node'}"


def _names(entry: Known, phase: str, criterion: str) -> bool:
    return bool(_phases(entry, [phase])) and _is_criterion(entry, criterion)


def _phases(entry: Known, names: Iterable[str]) -> list[str]:
    return [one for one in names if entry.phase is not None and fnmatchcase(one, entry.phase)]


def _is_criterion(entry: Known, name: str) -> bool:
    """Whether an entry names a criterion; one with parameters by its bare name, too."""
    glob = entry.criterion
    forms = (name, name.partition("[")[0])
    return glob is not None and any(one == glob or fnmatchcase(one, glob) for one in forms)


def _is_node(entry: Known, host: str) -> bool:
    """Whether an entry names a node, by the name it has or by that without its domain."""
    if entry.node is None or host in NO_HOST:
        return False
    forms = (host, host.partition(".")[0])
    return any(fnmatchcase(form, name) for name in _names_of(entry.node) for form in forms)


@lru_cache(maxsize=64)
def _names_of(node: str) -> tuple[str, ...]:
    """The names of a Slurm host list, each of which may be a glob."""
    return tuple(expand_hostlist(node))


def _failure(what: str, entries: list[tuple[Known, str]]) -> KnownFailure:
    """All that answer for one failure, as one; it holds as long as each of them does."""
    return KnownFailure(
        what,
        "; ".join(dict.fromkeys(entry.reason for entry, _ in entries)),
        min(entry.until for entry, _ in entries).isoformat(),
        ", ".join(dict.fromkeys(where for _, where in entries)),
    )


def _findings(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a job failed of; warnings decide nothing."""
    found = job.get("findings")
    listed = found if isinstance(found, list) else []
    return [one for one in listed if isinstance(one, dict) and one.get("severity") != "warning"]


def _is_own(finding: Mapping[str, Any]) -> bool:
    """Whether what failed here failed by itself, as far as anything tells."""
    detail = finding.get("detail")
    is_victim = isinstance(detail, dict) and detail.get("victim") is True
    return bool(finding.get("primary")) or not is_victim


def _hosts(finding: Mapping[str, Any]) -> set[str]:
    return {str(host) for host in finding.get("hosts") or ()}


def _nodes(run: RunDir, phase: str) -> Iterator[str]:
    """The nodes on which a phase's job ran, as they called themselves."""
    directory = run.phase(phase)
    count = (read_json(directory.spec) or {}).get("nodes")
    for number in range(count if isinstance(count, int) else 0):
        yield str((read_json(directory.node_facts(number)) or {}).get("node", ""))


def _is_full(tally: RunTally) -> bool:
    """Whether every phase and criterion of the cluster was asked for, and the run came to its
    end."""
    ended = not tally.interrupted and not tally.ended_early
    return ended and not tally.scope() and all(one.outcome for one in tally.phases.values())


def _was_judged(entry: Known, tally: RunTally) -> bool:
    """Whether the phases that an entry names were judged as far as it needs: a criterion is where
    its job passed."""
    judged = {"passed"} if entry.criterion != JOB else {"passed", "failed", "cluster_failed"}
    return all(tally.phases[name].outcome in judged for name in _phases(entry, tally.phases))


def _failed(entry: Known, tally: RunTally) -> bool:
    return any(
        one.result in ("failed", "known") and _names(entry, phase, name)
        for phase in _phases(entry, tally.phases)
        for name, one in tally.phases[phase].criteria.items()
    )
