"""Labs that do not start: daemons that die, signals, kills midway; and wrong arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_paths, lab_processes, lab_state
from tests.support.waiting import PATIENCE_S, wait_for

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Need = Callable[..., None]


def put_fake_program(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Put a fake program on PATH before the real one."""
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    path = programs / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def start_hanging_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[str]:
    """Start a `lab up` that waits for a slurmd which never gets ready."""
    put_fake_program(home, monkeypatch, "slurmd", "exec sleep 600")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the test runner may ignore it
    up = subprocess.Popen(
        [sys.executable, "-m", "pytest_clustersmoke.cli", "lab", "up", "--nodes", "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGHUP, before)

    def starts() -> bool:
        roles = [daemon.role for record in lab_state.records() for daemon in record.daemons]
        assert up.poll() is None, "`lab up` has ended"
        return "slurmd-node1" in roles

    wait_for("slurmd", starts)
    return up


@pytest.mark.lab
def test_dead_daemon_is_reported_with_its_log(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch, clustersmoke: Run
) -> None:
    """The message has the daemon, its last output and its log; only the log is kept."""
    need()
    put_fake_program(
        home,
        monkeypatch,
        "slurmctld",
        '[ "$1" = -V ] && echo slurm-wlm 22.05.8 && exit\necho "fatal: no such luck" >&2\nexit 3',
    )
    up = clustersmoke("lab", "up")
    assert up.returncode == 1
    assert "slurmctld ended while the lab was starting (exit status 3)" in up.stderr
    assert "fatal: no such luck" in up.stderr
    assert "Traceback" not in up.stderr
    log = home / "clustersmoke/logs/lab/slurmctld.out"
    assert str(log) in up.stderr
    assert log.read_text() == "fatal: no such luck\n"
    assert list(lab_paths.labs_home().iterdir()) == []


@pytest.mark.lab
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_ends_what_was_started(
    need: Need,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    status: int,
) -> None:
    """Ctrl-C and similar signals during `up` leave nothing; the message has no traceback."""
    need()
    up = start_hanging_up(home, monkeypatch)
    daemons = lab_state.records()[0].daemons
    up.send_signal(number)
    _, stderr = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == status
    assert "stopped; ending what was started" in stderr
    assert "Traceback" not in stderr
    assert not any(process.alive for process in daemons)
    assert list(lab_paths.labs_home().iterdir()) == []


@pytest.mark.lab
def test_down_cleans_up_after_a_killed_up(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch, clustersmoke: Run
) -> None:
    """After SIGKILL of `up` midway, status shows it, and `down` ends everything it had started."""
    need()
    up = start_hanging_up(home, monkeypatch)
    up.kill()
    up.communicate()
    daemons = lab_state.records()[0].daemons
    assert [process.alive for process in daemons] == [True] * 4
    status = clustersmoke("lab", "status")
    assert (status.returncode, status.stdout.splitlines()[0]) == (1, "lab: partly up")
    assert clustersmoke("lab", "down").returncode == 0
    assert not any(process.alive for process in daemons)
    assert list(lab_paths.labs_home().iterdir()) == []


@pytest.mark.lab
def test_unjournalled_daemon_is_found(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon still ends if `up` was killed between its start and its line in the journal."""
    need()
    up = start_hanging_up(home, monkeypatch)
    up.kill()
    up.communicate()
    record = lab_state.records()[0]
    lines = record.files.journal.read_text().splitlines(keepends=True)
    record.files.journal.write_text("".join(lines[:-1]))
    lost = record.daemons[-1]
    assert lost not in lab_state.records()[0].daemons
    lab.stop_lab("lab")
    assert not lost.alive


@pytest.mark.lab
def test_down_ends_a_running_up(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch, clustersmoke: Run
) -> None:
    """`down` of a lab that is being started also ends the `up`."""
    need()
    up = start_hanging_up(home, monkeypatch)
    daemons = lab_state.records()[0].daemons
    assert clustersmoke("lab", "status").stdout.startswith("lab: starting")
    assert clustersmoke("lab", "down").returncode == 0
    up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 143
    assert not any(process.alive for process in daemons)


@pytest.mark.lab
def test_dead_lab_is_replaced(need: Need, clustersmoke: Run) -> None:
    """`up` with the name of a lab whose processes have all died removes what is left of it, and
    says so."""
    need()
    lab.start_lab(lab.LabSettings(nodes=1))
    lab_processes.end(lab_state.records()[0].daemons, 5.0)
    up = clustersmoke("lab", "up", "--nodes", "1")
    assert up.returncode == 0, up.stderr
    assert "removing what is left of an earlier lab" in up.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "COMMAND"),
        (("lab",), "ACTION"),
        (("lab", "up", "--nodes", "x"), "invalid int value: 'x'"),
        (("lab", "up", "--nodes", "0"), "--nodes: 0 is out of range; expected 1 to 64"),
        (("lab", "up", "--name", "../x"), "--name: `../x` is not a valid name for a lab"),
        (("lab", "down", "--name", "x", "--all"), "not allowed with argument"),
        (("lab", "down", "--name", "nosuch"), "there is no lab `nosuch`"),
        (("lab", "env"), "no lab is running; start one with `clustersmoke lab up`"),
        (("lab", "env", "--name", "nosuch"), "lab nosuch is not running"),
    ],
)
def test_wrong_arguments_are_status_2(
    clustersmoke: Run, arguments: tuple[str, ...], message: str
) -> None:
    """The problem is reported in one line on stderr, with nothing on stdout for a shell."""
    answer = clustersmoke(*arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_status_and_down_without_labs(clustersmoke: Run) -> None:
    """Without labs `status` says so, with exit status 1, and `down` succeeds."""
    status = clustersmoke("lab", "status")
    assert (status.returncode, status.stdout) == (
        1,
        "no labs; start one with `clustersmoke lab up`\n",
    )
    assert clustersmoke("lab", "down").returncode == 0
