"""What is concluded from the answers of hosts; tests/jobs/test_ssh_backend.py asks real ones."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.jobs.host_probe import CLOCK_SCRIPT, HostFacts, parse_clock, parse_facts
from pytest_clustersmoke.jobs.outcome import judge_refusal
from pytest_clustersmoke.jobs.ssh_backend import SshBackend
from pytest_clustersmoke.jobs.ssh_client import UNREACHABLE, CommandHung, SshHost
from pytest_clustersmoke.preflight.host_check import HostCheck, _HostAnswer
from pytest_clustersmoke.preflight.slurm_check import CheckResult
from tests.support.evidence import make_phase, make_profile

OWN = metadata.version("pytest-clustersmoke")
NAMES = ["a", "b", "c"]
CPU = {"gpu": "any", "device": "cpu", "gpus_per_node": 8}
GPUS = {"gpu": "any", "device": "cuda", "gpus_per_node": 8}


def check(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    offsets: dict[str, float] | None = None,
    hardware: dict[str, Any] | None = None,
    names: list[str] = NAMES,
    **answers: Any,
) -> CheckResult:
    """The check of phases of one, two and all nodes on healthy hosts, but for these answers."""
    keys: dict[str, Any] = {"backend": "ssh", "hosts": names, "hardware": hardware or CPU}
    keys["phases"] = {f"on_{count}": None for count in (1, 2, len(names))}
    profile = make_profile(folder, **keys)
    run = RunDir(folder / "run")

    def look(_: HostCheck, host: SshHost, _phase: object, own: Any, token: Path) -> _HostAnswer:
        python: dict[str, Any] = {"executable": "/venv/python", "python": "3.11", "packages": {}}
        python["packages"] = {"pytest-clustersmoke": OWN, "torch": "2.6"}
        given: dict[str, Any] = {"sees": token.read_text().strip(), "python": python, "gpus": 8}
        given |= answers.get(host.name, {})
        own.seen.write_text(token.read_text())
        return _HostAnswer(HostFacts(**given), (offsets or {}).get(host.name, 0.0), 0.1)

    monkeypatch.setattr(HostCheck, "_look", look)
    phases = [make_phase(profile, f"on_{count}", nodes=count) for count in {1, 2, len(names)}]
    return HostCheck(profile, SshBackend(profile, os.environ))(phases, run)


def ids(checked: CheckResult) -> dict[str, set[tuple[str, tuple[str, ...]]]]:
    return {
        name: {(finding.id, finding.hosts) for finding in findings}
        for name, findings in checked.findings.items()
    }


def python(version: str, **packages: str) -> dict[str, Any]:
    own = {"pytest-clustersmoke": OWN, "torch": "2.6", **packages}
    return {"python": {"executable": "/venv/python", "python": version, "packages": own}}


def test_healthy_hosts_give_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = check(tmp_path, monkeypatch)
    assert (checked.findings, checked.lines) == ({}, ())


def test_host_with_other_versions_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most hosts agree: the phases that still fit run without it."""
    checked = check(tmp_path, monkeypatch, b=python("3.11", torch="2.5"))
    assert ids(checked) == {"on_3": {("versions-differ", ("b",))}}
    (line,) = checked.lines
    assert line.startswith("b: ") and "torch 2.5 (most common: 2.6)" in line


def test_two_hosts_that_differ_run_no_phase_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says which of them is wrong, and a phase of one node does not mind."""
    checked = check(tmp_path, monkeypatch, names=["a", "b"], b=python("3.12"))
    assert ids(checked) == {"on_2": {("versions-differ", ("a", "b"))}}


def test_other_version_of_this_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = python("3.11", **{"pytest-clustersmoke": "0.0.1"})
    checked = check(tmp_path, monkeypatch, a=other, b=other, c=other)
    assert {finding.id for finding in checked.findings["on_1"]} == {"versions-differ"}


def test_host_whose_check_hangs_is_not_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets us in and tells its time, so the phase never ran: the cluster's nodes are not out."""

    def run(_: SshHost, script: str, timeout_s: float) -> list[str]:
        if script in (":", CLOCK_SCRIPT):
            return []
        why = f"a command there did not end within {timeout_s:g} s"
        raise CommandHung(UNREACHABLE, why, silent=True)

    monkeypatch.setattr(SshHost, "run", run)
    profile = make_profile(tmp_path, backend="ssh", hosts=["a"], hardware=CPU, phases={"p": None})
    backend = SshBackend(profile, os.environ)
    checked = HostCheck(profile, backend)([make_phase(profile, "p")], RunDir(tmp_path / "run"))
    (finding,) = checked.findings["p"]
    assert finding.id == "host-check-slow"
    assert "it answers, but the check of it hung" in finding.cause
    assert judge_refusal([finding]).outcome == "never_ran"


def test_lack_of_gpus_and_programs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = check(tmp_path, monkeypatch, hardware=GPUS, a={"gpus": 7}, c={"lacks": ("setsid",)})
    expected = {("gpus-missing", ("a",)), ("host-lacks-programs", ("c",))}
    assert ids(checked) == {"on_2": expected, "on_3": expected}


def test_clock_that_is_off_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the second that is allowed, and the error of the measurement."""
    checked = check(tmp_path, monkeypatch, offsets={"a": 1.05, "b": -3.0})
    assert checked.findings == {}
    (line,) = checked.lines
    assert line.startswith("the clock of b is 3.0 s behind this machine's")


def test_other_interpreter_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions are those of the others, so the phases run; a host without an answer has no
    path to compare."""
    other = python("3.11")
    other["python"]["executable"] = "/opt/\x1b[1mpython"
    checked = check(tmp_path, monkeypatch, b=other)
    assert checked.findings == {}
    assert checked.lines == (
        "the interpreter is not the same on all hosts: /venv/python on a, c; "
        "/opt/\ufffd[1mpython on b",
    )
    silent = tmp_path / "silent"
    silent.mkdir()
    checked = check(silent, monkeypatch, b={"python": {}})
    assert not [line for line in checked.lines if "the interpreter" in line]


def test_two_names_of_one_machine_are_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them no network is tested. They may be meant, as the virtual nodes of a lab are; and
    containers of one machine have networks of their own."""
    one, own, other = (
        {"machine": machine} for machine in ("boot net:[1]", "boot net:[2]", "boot2 net:[1]")
    )
    checked = check(tmp_path, monkeypatch, a=one, b=one, c=own)
    assert checked.findings == {}
    (line,) = checked.lines
    assert line.startswith("a, b are one machine (the same boot and network): a phase with nodes")
    unknown = {"machine": "boot"}
    for number, pair in enumerate(((one, own), (one, other), (unknown, unknown))):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert check(folder, monkeypatch, a=pair[0], b=pair[1]).lines == ()


def test_only_jobs_of_the_host_itself_keep_phases_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts of a profile may be names of one machine, whose processes both see."""
    running = [f"csm-node run9/small/{rank}@{name}" for rank, name in ((0, "b"), (1, "z"))]
    nodes = parse_facts([*running, "csm-node something else", *running]).nodes
    assert [str(node) for node in nodes] == ["run9/small/0@b", "run9/small/1@z"]
    checked = check(tmp_path, monkeypatch, a={"nodes": nodes}, b={"nodes": nodes})
    (finding,) = checked.findings["on_3"]
    assert (finding.id, finding.hosts) == ("host-in-use", ("b",))
    assert finding.cause == "b: it still runs run9/small, of another run"


def test_answers_are_untrusted() -> None:
    """Whatever else a host prints is no answer."""
    assert parse_clock(["hello", "csm-time 12.5"]) == 12.5
    assert parse_clock(["csm-time never"]) is None and parse_clock([]) is None
    facts = parse_facts(["csm-sees", "csm-gpus -1", "csm-python [1]", "last words"])
    assert facts == HostFacts(last_line="last words")
    facts = parse_facts(["csm-cores ²", "csm-memory 9e9", "csm-gpus " + "9" * 5000])
    assert facts == HostFacts()
    lines = ["csm-model NVIDIA H100", "csm-model NVIDIA H100", "csm-cores 8", "csm-memory 2097152"]
    assert parse_facts(lines) == HostFacts(models=("NVIDIA H100",) * 2, cores=8, memory=2048)
