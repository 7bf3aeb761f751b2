"""Known failures: which entry of `known` in cluster.yaml covers a failure, and until when.

A known failure is neither green nor red: the verdict is never better than INCONCLUSIVE. An entry
covers only what it names. A finding without a host, and one on a host that no entry names, stay
failures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from ..config.hostlist import expand_hostlist
from ..config.marker import JOB
from ..config.profile import Profile
from ..config.waivers import Known
from ..text import WARNING, Problem, near, quote_names

if TYPE_CHECKING:  # a collection does not load it
    from ..evidence.finding import Finding
    from ..evidence.phase_result import PhaseResult
    from ..evidence.run_counts import KnownRecord
    from ..evidence.run_record import RunRecord

# We cancelled the job ourselves: that is not a failure.
NO_FAILURE = {"passed", "cancelled"}
# What a finding lists as its host if the host could not be determined.
NO_HOST = {"unknown", ""}


class Acknowledgements:
    """The entries of one profile that are valid on the day the run started."""

    def __init__(self, profile: Profile, run_id: str) -> None:
        # The day in the run's name, so that all processes agree.
        day = datetime.strptime(run_id[:8], "%Y%m%d").date()
        self.entries: dict[str, str] = {name: name for name in profile.phases}
        places = [profile.where("known", index) for index in range(len(profile.known))]
        entries = list(zip(profile.known, places, strict=True))
        self._held = [(entry, where) for entry, where in entries if day <= entry.until]
        self._expired = [(entry, where) for entry, where in entries if day > entry.until]

    def answer(self, result: PhaseResult, criterion: str) -> KnownRecord | None:
        """The entry that covers a failed criterion of this phase. If the job did not pass, no
        criterion was judged: the entry for the job covers them all."""
        if result.outcome == "passed":
            return self._of_criterion(result, criterion)
        if result.outcome in NO_FAILURE:
            return None
        return self._of_criterion(result, JOB) or self._of_nodes(result)

    def _of_criterion(self, result: PhaseResult, criterion: str) -> KnownRecord | None:
        covering = (
            pair
            for pair in self._held
            if _covers(pair[0], result.name, result.entry) and _is_criterion(pair[0], criterion)
        )
        return next((_failure(f"{result.name}: {criterion}", [pair]) for pair in covering), None)

    def set_points(self, entries: Mapping[str, str]) -> None:
        """Take the points of swept phases, with the name of each one's phase, for that phase."""
        swept = set(entries.values())
        kept = {name: name for name in self.entries if name not in swept}
        self.entries = {**kept, **entries}

    def _phases(self, entry: Known, names: Iterable[str]) -> list[str]:
        """Those of these phases that an entry names, itself or the phase of its sweep."""
        return [name for name in names if _covers(entry, name, self.entries.get(name, name))]

    def _of_nodes(self, result: PhaseResult) -> KnownRecord | None:
        """The entries that together cover every host that failed by itself; None if a finding has
        no host, or if no cause is left."""
        by_host = self._by_host(result)
        entries = [entry for entry in by_host.values() if entry is not None]
        if not by_host or len(entries) < len(by_host):
            return None
        distinct = [pair for index, pair in enumerate(entries) if pair not in entries[:index]]
        return _failure(f"{result.name}: {JOB}", distinct)

    def uncovered_hosts(self, result: PhaseResult) -> list[str]:
        """The hosts that no entry covers, if an entry covers other hosts of the same job."""
        by_host = self._by_host(result)
        new = [host for host, entry in by_host.items() if entry is None]
        known = [host for host, entry in by_host.items() if entry is not None]
        if not new or not known or self.answer(result, JOB):
            return []
        names = ", ".join(host or "findings without a host" for host in new)
        return [f"`known` covers {', '.join(known)}, but not {names}"]

    def _by_host(self, result: PhaseResult) -> dict[str, tuple[Known, str] | None]:
        """Each host that failed by itself, with the entry that covers it; "" stands for findings
        without a host. A finding that is neither primary nor a victim's counts too: another host
        failed in the same way."""
        own = [
            finding
            for finding in _failures(result)
            if finding.primary or finding.detail.get("victim") is not True
        ]
        if not any(finding.primary for finding in own):
            return {}
        hosts = sorted({host for finding in own for host in finding.hosts or ("",)})
        return {
            host: next((pair for pair in self._held if _is_node(pair[0], host)), None)
            for host in hosts
        }

    # Remarks about the entries themselves

    def misnamed_entries(
        self, criteria: Mapping[str, Collection[str] | None], selected: Collection[str]
    ) -> list[Problem]:
        """Entries for selected phases that match no criterion of theirs. `criteria` has all
        criteria of each collected phase; entries for other phases cannot be checked."""
        problems = []
        for entry, where in self._held:
            phases = self._phases(entry, self.entries)
            collected = [criteria.get(phase) for phase in phases]
            if not set(phases) & set(selected) or None in collected:
                continue
            names = list(
                dict.fromkeys([JOB, *(name for group in collected for name in group or ())])
            )
            if not any(_is_criterion(entry, name) for name in names):
                problems.append(
                    Problem(
                        f"`{entry.criterion}` matches no criterion of {', '.join(phases)}",
                        where,
                        f"one of {quote_names(names)}",
                        near(str(entry.criterion), names),
                    )
                )
        return problems

    def remarks(self, record: RunRecord) -> list[str]:
        """Expired entries; after a full run, also entries that covered no failure."""
        expired = [
            f"the entry of `known` at {where} expired on {entry.until}: renew or remove it"
            for entry, where in self._expired
        ]
        return [*expired, *self._unneeded(record)] if _is_full(record) else expired

    def _unneeded(self, record: RunRecord) -> Iterator[str]:
        hosts = {
            host
            for phase in record.phases
            for finding in phase.findings
            if finding.severity != WARNING
            for host in finding.hosts
        }
        nodes = {node.node for node in record.nodes if node.phases}
        for entry, where in self._held:
            unneeded = f"nothing failed that the entry of `known` at {where} covers"
            if entry.node is None:
                if self._was_judged(entry, record) and not self._failed(entry, record):
                    yield f"{unneeded}: remove it?"
            elif not any(_is_node(entry, host) for host in hosts):
                was_used = any(_is_node(entry, node) for node in nodes)
                yield f"{unneeded}{': remove it?' if was_used else '; no job ran on that node'}"

    def _was_judged(self, entry: Known, record: RunRecord) -> bool:
        """Whether the phases that an entry names were judged: a criterion is only judged if its job
        passed."""
        judged = {"passed"} if entry.criterion != JOB else {"passed", "failed", "cluster_failed"}
        outcomes = {phase.phase: phase.outcome for phase in record.phases}
        return all(outcomes[name] in judged for name in self._phases(entry, outcomes))

    def _failed(self, entry: Known, record: RunRecord) -> bool:
        return any(
            criterion.result in ("failed", "known") and _is_criterion(entry, name)
            for phase in record.phases
            if self._phases(entry, [phase.phase])
            for name, criterion in phase.criteria.items()
        )


def _covers(entry: Known, *names: str) -> bool:
    return entry.phase is not None and any(fnmatchcase(name, entry.phase) for name in names)


def _is_criterion(entry: Known, name: str) -> bool:
    """Whether an entry names a criterion; a parametrized one also by its bare name."""
    glob = entry.criterion
    forms = (name, name.partition("[")[0])
    return glob is not None and any(form == glob or fnmatchcase(form, glob) for form in forms)


def _is_node(entry: Known, host: str) -> bool:
    """Whether an entry names a node, with or without its domain."""
    if entry.node is None or host in NO_HOST:
        return False
    forms = (host, host.partition(".")[0])
    return any(fnmatchcase(form, name) for name in _names_of(entry.node) for form in forms)


@lru_cache(maxsize=64)
def _names_of(node: str) -> tuple[str, ...]:
    """The names in a Slurm host list; each may be a glob."""
    return tuple(expand_hostlist(node))


def _failure(name: str, entries: list[tuple[Known, str]]) -> KnownRecord:
    """The entries that cover one failure, joined; valid as long as all of them are."""
    from ..evidence.run_counts import KnownRecord

    return KnownRecord(
        what=name,
        reason="; ".join(dict.fromkeys(entry.reason for entry, _ in entries)),
        until=min(entry.until for entry, _ in entries).isoformat(),
        where=", ".join(dict.fromkeys(where for _, where in entries)),
    )


def _failures(result: PhaseResult) -> list[Finding]:
    """The findings that a job failed for; warnings decide nothing."""
    return [finding for finding in result.findings if finding.severity != WARNING]


def _is_full(record: RunRecord) -> bool:
    """Whether every phase and criterion of the cluster was selected, and the run finished. Without
    some nodes it need not meet their failures."""
    ended = not record.interrupted and record.counts.exit_status <= 1
    is_all = not (record.selection or record.counts.avoided)
    return ended and is_all and all(p.counts.has_ended for p in record.phases)
