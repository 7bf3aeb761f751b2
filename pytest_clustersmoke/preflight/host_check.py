"""Ask every host of a profile with `backend: ssh` whether it can run phases, before the first does.

Each must let us in without a question, see the run directory as this machine does, have the
programs, GPUs and Python that the phases need, and run no job of another run. A phase for which too
few such hosts are left never runs; the others use the hosts that are fine.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import MAX_TEXT, Evidence, Finding
from ..evidence.run_directory import PhaseDir, RunDir, write_atomically
from ..evidence.telemetry import read_start
from ..evidence.variable_names import hide_assignments
from ..jobs import ssh_client
from ..jobs.host_probe import (
    CLOCK_SCRIPT,
    OWN_PACKAGE,
    HostFacts,
    parse_clock,
    parse_facts,
    probe_script,
)
from ..jobs.ssh_backend import SshBackend
from ..jobs.ssh_client import CommandHung, HostUnavailable, SshHost, ask_hosts
from ..node.abort_flag import visible
from ..node.checks import merge_findings, nodes_of
from ..node.checks.consistency import check_versions
from ..node.checks.peers import CLOCK_S
from ..text import plural, sanitize_line, shorten
from .slurm_check import CheckNotes, CheckResult

ANSWER_S = 10.0
SEEN_WITHIN_S = 10.0  # NFS may show a file that another host wrote some seconds later
POLL_S = 0.2
MOST_NAMES = 4

# Why ssh cannot use a host: the finding's id, and what to do.
REFUSALS = {
    ssh_client.HUNG: (
        "host-check-slow",
        "look there whether `shared_dir` hangs, and how long the lines of `setup` and the start of "
        "Python take; if they are only slow, raise `ssh.check_s`; try `{command}`",
    ),
    ssh_client.UNREACHABLE: (
        "host-unreachable",
        "check that the host is up, that its SSH server runs, and `hosts` in cluster.yaml; try "
        "`{command} true`",
    ),
    ssh_client.WRONG_KEY: (
        "host-key-refused",
        "compare the host's key with the one that its administrator gives, then put it into "
        "known_hosts (`ssh-keygen -R` removes an old one); unknown keys are never accepted",
    ),
    ssh_client.NO_LOGIN: (
        "host-login-refused",
        "set up a key that needs no password (ssh-copy-id, or a key in ssh-agent), and name it as "
        "`identity`: nobody can type while phases run; try `{command} true`",
    ),
    ssh_client.NO_SHELL: (
        "host-shell-unusable",
        "make `{command} true` end without a question: start-up files (.bashrc) must not ask, and "
        "the account needs a shell; if the host is only busy, raise `ssh.check_s`",
    ),
}


@dataclass(frozen=True)
class _HostAnswer:
    """A host as it was found: what it answered, and how far its clock is ahead of ours."""

    facts: HostFacts
    offset_s: float | None
    error_s: float


class HostCheck:
    """Checks the hosts of one cluster, all at the same time."""

    def __init__(self, profile: Profile, backend: SshBackend) -> None:
        self._profile, self._backend = profile, backend

    def __call__(self, phases: Iterable[Phase], run: RunDir) -> CheckResult:
        phases, hosts = list(phases), list(self._backend.hosts.values())
        looks, found = self._ask(run, phases[0])
        differing = self._compare({h: looks[h.name] for h in hosts if not found[h]}, found)
        bad = {host: findings for host, findings in found.items() if findings}
        self._backend.leave_out(host.name for host in bad)
        refused = {}
        for phase in phases:
            findings = differing if phase.nodes.value > 1 else []
            if phase.nodes.value > len(hosts) - len(bad):
                findings = [*findings, *(each for all_ in bad.values() for each in all_)]
            if findings:
                refused[phase.name] = self._quote(phase, run, findings)
        lines = [f"{each.cause}; it is left out" for all_ in bad.values() for each in all_]
        remarks = (*_remark_on_clocks(looks), *_remark_on_paths(looks), *_remark_on_machines(looks))
        return CheckResult(refused, lines=(*lines, *remarks))

    def survey(self, run: RunDir) -> tuple[dict[str, HostFacts], list[Finding]]:
        """The facts by which `init` chooses phases, and what would keep each host from running
        them. `run` is used for nothing else."""
        looks, found = self._ask(run, None)
        facts = {name: look.facts for name, look in looks.items()}
        return facts, [finding for findings in found.values() for finding in findings]

    def _ask(
        self, run: RunDir, phase: Phase | None
    ) -> tuple[dict[str, _HostAnswer], dict[SshHost, list[Finding]]]:
        """Look at all hosts at once, and judge each by itself."""
        hosts = list(self._backend.hosts.values())
        token = run.host_token
        write_atomically(token, secrets.token_hex(16) + "\n")
        folders = {host: _make_folder(run, rank) for rank, host in enumerate(hosts)}
        answers = ask_hosts(hosts, lambda host: self._look(host, phase, folders[host], token))
        found = {host: self._judge(host, answers[host], folders[host], token) for host in hosts}
        looks = {host.name: look for host, look in answers.items() if isinstance(look, _HostAnswer)}
        return looks, found

    def _look(
        self, host: SshHost, phase: Phase | None, folder: PhaseDir, token: Path
    ) -> _HostAnswer:
        ssh = self._profile.ssh
        try:
            host.run(":", ANSWER_S + ssh.connect_s)
        except HostUnavailable as error:
            # A login shell that asks has printed its question. One that printed nothing may be
            # that of a host which is busy.
            if not error.silent:
                raise
            host.run(":", ssh.check_s)
        before = time.time()  # the clock is asked once the connection is there
        there = parse_clock(host.run(CLOCK_SCRIPT, ssh.check_s))
        error_s = (time.time() - before) / 2
        script = probe_script(self._profile, phase, folder, token)
        try:
            facts = parse_facts(host.run(script, ssh.check_s))
        except CommandHung as error:
            why = f"it answers, but the check of it hung: {error}"
            raise HostUnavailable(ssh_client.HUNG, why) from error
        return _HostAnswer(facts, None if there is None else there - before - error_s, error_s)

    def _judge(
        self, host: SshHost, answer: _HostAnswer | HostUnavailable, folder: PhaseDir, token: Path
    ) -> list[Finding]:
        """What keeps the host from running phases; each cause names it."""
        if isinstance(answer, HostUnavailable):
            finding_id, fix = REFUSALS[answer.kind]
            faults = [Finding(finding_id, str(answer), fix.format(command=host.command))]
        else:
            faults = [
                *_judge_files(folder, token, answer.facts),
                *self._judge_host(host.name, answer.facts),
            ]
            faults = faults or [*_judge_python(folder, answer.facts)]
        return [
            replace(fault, cause=f"{host.name}: {fault.cause}", hosts=(host.name,))
            for fault in faults
        ]

    def _judge_host(self, name: str, facts: HostFacts) -> Iterator[Finding]:
        hardware = self._profile.hardware
        if facts.lacks:
            why = f"the programs {', '.join(facts.lacks)} are not on its PATH"
            yield Finding(
                "host-lacks-programs", why, "install bash, coreutils, util-linux, grep and sed"
            )
        # Hosts of the profile may be one machine.
        if jobs := [node.job for node in facts.nodes if node.host == name]:
            fix = "wait until that run has ended, or end its processes (CLUSTERSMOKE_HOST_JOB)"
            yield Finding("host-in-use", f"it still runs {', '.join(jobs)}, of another run", fix)
        is_known = hardware.device == "cuda" and facts.gpus is not None
        if is_known and (facts.gpus or 0) < hardware.gpus_per_node:
            why = f"nvidia-smi lists {plural(facts.gpus or 0, 'GPU')}; hardware.gpus_per_node is "
            fix = "check whether a GPU is lost (nvidia-smi -L), or correct hardware.gpus_per_node"
            yield Finding("gpus-missing", why + str(hardware.gpus_per_node), fix)

    def _compare(
        self, looks: Mapping[SshHost, _HostAnswer], found: dict[SshHost, list[Finding]]
    ) -> list[Finding]:
        """Note hosts whose versions differ from those of most. Without a majority, return the
        findings that keep phases of several nodes from running."""
        facts = [{**look.facts.python, "node": host.name} for host, look in looks.items()]
        findings = list(check_versions(nodes_of(facts), {}))
        by_name = {host.name: host for host in looks}
        if len({name for finding in findings for name in finding.hosts}) == len(looks):
            return merge_findings(findings)
        for finding in findings:
            for name in finding.hosts:
                cause = f"{name}: {finding.cause}"
                found[by_name[name]].append(replace(finding, cause=cause))
        return []

    def _quote(self, phase: Phase, run: RunDir, findings: Iterable[Finding]) -> list[Finding]:
        """The findings, with the lines of the hosts in cluster.yaml and in `preflight.txt`."""
        notes = CheckNotes(run.phase(phase.name))
        names = list(self._backend.hosts)
        quoted = []
        for finding in findings:
            lines = [self._profile.where("hosts", names.index(name)) for name in finding.hosts]
            at = (line.rpartition(":") for line in lines)
            written = [
                Evidence(file, int(number), f"hosts: {name}")
                for (file, _, number), name in zip(at, finding.hosts, strict=True)
                if number.isdigit()
            ]
            evidence = (*dict.fromkeys(written), notes.note(finding.cause))
            quoted.append(replace(finding, evidence=evidence))
        notes.write()
        return quoted


def _make_folder(run: RunDir, rank: int) -> PhaseDir:
    folder = run.host(rank)
    folder.root.mkdir(parents=True, exist_ok=True)
    return folder


def _judge_files(folder: PhaseDir, token: Path, facts: HostFacts) -> Iterator[Finding]:
    """Whether both sides see what the other one wrote."""
    written, seen = token.read_text(), folder.seen
    deadline = time.monotonic() + SEEN_WITHIN_S
    why = ""
    if facts.sees != written.strip():
        why = f"it does not see {token}, which this machine wrote"
    while not why and not (visible(seen) and _read(seen) == written):
        if time.monotonic() > deadline:
            why = f"this machine does not see {seen}, which the host wrote"
        time.sleep(POLL_S)
    if why:
        fix = "mount the same file system at the same path on all hosts and here, or move "
        yield Finding("shared-directory-not-seen", why, f"{fix}`shared_dir`")


def _read(path: Path) -> str:
    """The beginning of a file that a host wrote; empty if it cannot be read."""
    try:
        return read_start(path, MAX_TEXT).decode(errors="replace")
    except OSError:
        return ""


def _judge_python(folder: PhaseDir, facts: HostFacts) -> Iterator[Finding]:
    """Whether the nodes' Python starts there, and has this package."""
    own = metadata.version(OWN_PACKAGE)
    if visible(folder.setup_failed):
        written = hide_assignments(_read(folder.setup_failed))
        status, _, line = written.strip().partition("\t")
        why = f"the setup line `{sanitize_line(line)}` failed with status {sanitize_line(status)}"
        yield Finding("setup-line-failed", why, "run the line in a fresh shell there")
    elif not facts.python:
        why = f"the nodes' Python does not start there: {facts.last_line or 'it printed nothing'}"
        fix = "set `python` in cluster.yaml to an interpreter that exists on this host"
        yield Finding("python-missing-on-node", why, fix)
    elif not facts.package:
        why = f"{facts.python.get('executable')} has no package {OWN_PACKAGE}"
        fix = "install it into the environment that `setup` and `python` select"
        yield Finding("package-missing-on-node", why, fix)
    elif facts.package != own:
        why = f"it has {OWN_PACKAGE} {facts.package}, and this machine {own}"
        yield Finding("versions-differ", why, "use the same environment on every host and here")


def _remark_on_clocks(looks: Mapping[str, _HostAnswer]) -> Iterator[str]:
    for name, look in looks.items():
        if look.offset_s is not None and abs(look.offset_s) - look.error_s > CLOCK_S:
            which = "ahead of" if look.offset_s > 0 else "behind"
            yield (
                f"the clock of {name} is {abs(look.offset_s):.1f} s {which} this machine's "
                f"(measured to within {look.error_s:.2f} s); check its time service"
            )


def _remark_on_paths(looks: Mapping[str, _HostAnswer]) -> Iterator[str]:
    by_path: dict[str, list[str]] = {}
    for name, look in looks.items():
        if path := look.facts.python.get("executable"):
            by_path.setdefault(sanitize_line(str(path)), []).append(name)
    if len(by_path) > 1:
        paths = "; ".join(f"{path} on {shorten(on, MOST_NAMES)}" for path, on in by_path.items())
        yield f"the interpreter is not the same on all hosts: {paths}"


def _remark_on_machines(looks: Mapping[str, _HostAnswer]) -> Iterator[str]:
    """Hosts of a profile may be one machine on purpose, as the virtual nodes of a test are."""
    by_machine: dict[str, list[str]] = {}
    for name, look in looks.items():
        if len(look.facts.machine.split()) == 2:  # its boot and its network, or neither is known
            by_machine.setdefault(look.facts.machine, []).append(name)
    for names in by_machine.values():
        if len(names) > 1:
            yield (
                f"{shorten(names, MOST_NAMES)} are one machine (the same boot and network): a "
                "phase with nodes on it tests no network between them; if that is a mistake, "
                "correct `hosts` in cluster.yaml"
            )
