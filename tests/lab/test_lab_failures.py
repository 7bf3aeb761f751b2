"""Labs that do not come up: daemons that die, signals, kills half-way; and wrong words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_paths, lab_processes, lab_state

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Need = Callable[..., None]


def fake(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Put a program of ours before the real one."""
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    path = programs / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def hanging_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[str]:
    """A `lab up` that waits for a slurmd which never comes."""
    fake(home, monkeypatch, "slurmd", "exec sleep 600")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    up = subprocess.Popen(
        [sys.executable, "-m", "pytest_clustersmoke.cli", "lab", "up", "--nodes", "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGHUP, before)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for record in lab_state.records():
            if "slurmd-node1" in [process.role for process in record.daemons]:
                return up
        time.sleep(0.02)
    raise AssertionError("`lab up` did not come as far as slurmd")


@pytest.mark.lab
def test_a_daemon_that_dies_is_told_with_its_log(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch, clustersmoke: Run
) -> None:
    """The message has the daemon, its last words and its log, which is kept; nothing else is."""
    need()
    fake(
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
def test_a_signal_ends_what_was_started(
    need: Need,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    status: int,
) -> None:
    """Ctrl-C (and its like) during `up` leaves nothing, and tells so without a traceback."""
    need()
    up = hanging_up(home, monkeypatch)
    daemons = lab_state.records()[0].daemons
    up.send_signal(number)
    _, said = up.communicate(timeout=20)
    assert up.returncode == status
    assert "stopped; ending what was started" in said
    assert "Traceback" not in said
    assert not any(process.alive for process in daemons)
    assert list(lab_paths.labs_home().iterdir()) == []


@pytest.mark.lab
def test_down_cleans_behind_a_killed_up(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch, clustersmoke: Run
) -> None:
    """After SIGKILL of `up` half-way, status says so, and `down` ends all that it had started."""
    need()
    up = hanging_up(home, monkeypatch)
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
def test_a_daemon_that_was_not_written_down_is_found(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between a daemon's start and its line in the journal, the daemon still ends."""
    need()
    up = hanging_up(home, monkeypatch)
    up.kill()
    up.communicate()
    record = lab_state.records()[0]
    lines = record.files.journal.read_text().splitlines(keepends=True)
    record.files.journal.write_text("".join(lines[:-1]))
    lost = record.daemons[-1]
    assert lost not in lab_state.records()[0].daemons
    lab.down("lab")
    assert not lost.alive


@pytest.mark.lab
def test_down_ends_an_up_that_is_under_way(
    need: Need, home: Path, monkeypatch: pytest.MonkeyPatch, clustersmoke: Run
) -> None:
    """`down` of a lab that is being started ends the `up`, too."""
    need()
    up = hanging_up(home, monkeypatch)
    daemons = lab_state.records()[0].daemons
    assert clustersmoke("lab", "status").stdout.startswith("lab: starting")
    assert clustersmoke("lab", "down").returncode == 0
    up.communicate(timeout=20)
    assert up.returncode == 143
    assert not any(process.alive for process in daemons)


@pytest.mark.lab
def test_a_dead_lab_makes_room(need: Need, clustersmoke: Run) -> None:
    """`up` over a lab whose processes have all died removes its rest, and says so."""
    need()
    lab.up(lab.LabSettings(nodes=1))
    lab_processes.end(lab_state.records()[0].daemons, 5.0)
    up = clustersmoke("lab", "up", "--nodes", "1")
    assert up.returncode == 0, up.stderr
    assert "removing what is left of an earlier lab" in up.stderr


@pytest.mark.parametrize(
    ("words", "told"),
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
def test_wrong_words_are_status_2(clustersmoke: Run, words: tuple[str, ...], told: str) -> None:
    """What cannot be done is told in a line on stderr, with nothing on stdout for a shell."""
    answer = clustersmoke(*words)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert told in answer.stderr
    assert "Traceback" not in answer.stderr


def test_with_nothing_there(clustersmoke: Run) -> None:
    """`status` says that there is none, with status 1; `down` has nothing to do."""
    status = clustersmoke("lab", "status")
    assert (status.returncode, status.stdout) == (
        1,
        "no labs; start one with `clustersmoke lab up`\n",
    )
    assert clustersmoke("lab", "down").returncode == 0
