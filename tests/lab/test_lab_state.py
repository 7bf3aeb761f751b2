"""Reading a lab's journal, and choosing the lab to use; no Slurm is needed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_paths, lab_processes, lab_state
from pytest_clustersmoke.lab.lab_processes import Process

Make = Callable[..., lab_state.LabRecord]
Alive = Callable[..., Process]


@pytest.fixture
def alive() -> Iterator[Alive]:
    """Make a journal entry for a running process with a role."""
    child = subprocess.Popen(["sleep", "600"])
    started = lab_processes.start_time(child.pid)
    assert started is not None

    def process(role: str = "munged") -> Process:
        return Process(role, child.pid, started)

    yield process
    child.kill()
    child.wait()


def dead(role: str = "munged") -> Process:
    """Our own pid with another start time, as after the pid was reused."""
    return Process(role, os.getpid(), 1)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Write a lab's directory as `up` does, with these processes."""

    def make_lab(name: str, *started: Process, ready: bool = True) -> lab_state.LabRecord:
        root = lab_paths.labs_home() / name
        root.mkdir(parents=True)
        journal = lab_state.Journal(lab_paths.journal_of(root))
        journal.open(name, f"token-of-{name}", root / "run")
        for process in started:
            journal.started(process)
        if ready:
            files = lab_paths.LabDir(root, root / "run")
            running_lab = lab.Lab(name, files.slurm_conf, ("node0",), 2, False, False)
            lab_state.write_state(lab_state.read_record(name, root), running_lab, "22.05.8")
        return lab_state.read_record(name, root)

    return make_lab


def test_status_follows_the_processes(make: Make, alive: Alive) -> None:
    """With all processes alive the lab is up, with some partly up, with none down; a reused pid
    counts as dead."""
    assert make("up", alive()).status == "up"
    assert make("partly", alive(), dead()).status == "partly up"
    assert make("down", dead()).status == "down"
    assert make("half", alive(), ready=False).status == "partly up"
    assert make("starting", alive("starter"), ready=False).status == "starting"


def test_lab_of_another_boot_or_host_is_not_ours(
    make: Make, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pids from before a reboot are ignored; a lab on another host is left alone."""
    record = make("t", alive())
    with monkeypatch.context() as patch:
        patch.setattr(lab_state, "boot_id", lambda: "another")
        assert record.status == "down"
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert record.status == "on another host"
    with pytest.raises(lab.LabError, match="end it there"):
        lab.stop_lab("t")


def test_truncated_journal_is_read(make: Make, alive: Alive) -> None:
    """A last line cut short by a kill does not affect the lines before it."""
    record = make("t", alive(), ready=False)
    with record.files.journal.open("a") as stream:
        stream.write('{"process": {"role": "slu')
    assert lab_state.read_record("t", record.files.root).processes == (alive(),)


def test_without_labs_the_error_names_the_command() -> None:
    """With no lab the error names the command that starts one."""
    with pytest.raises(lab.LabError, match="clustersmoke lab up"):
        lab.find_lab({})


def test_only_running_lab_is_found(make: Make, alive: Alive) -> None:
    """The only running lab is found; dead ones do not count."""
    make("old", dead())
    make("new", alive())
    assert lab.find_lab({}).name == "new"
    assert [running.name for running in lab.list_running_labs()] == ["new"]


def test_two_running_labs_need_a_choice(make: Make, alive: Alive) -> None:
    """With two labs the error lists both and says how to choose."""
    make("a", alive())
    record = make("b", alive())
    with pytest.raises(lab.LabError) as error:
        lab.find_lab({})
    assert "2 labs are running (a, b)" in str(error.value)
    assert 'eval "$(clustersmoke lab env --name a)"' in str(error.value)
    assert lab.find_lab({"SLURM_CONF": str(record.files.slurm_conf)}).name == "b"


def test_dead_lab_in_slurm_conf_is_refused(make: Make) -> None:
    """SLURM_CONF of a lab that has ended is an error."""
    record = make("t", dead())
    with pytest.raises(lab.LabError, match="that lab is down"):
        lab.find_lab({"SLURM_CONF": str(record.files.slurm_conf)})


def test_foreign_slurm_is_described(tmp_path: Path) -> None:
    """The slurm.conf of another Slurm shows its nodes, GPUs and accounting."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "AccountingStorageType=accounting_storage/slurmdbd\n"
        "NodeName=DEFAULT CPUs=4\n"
        "NodeName=gpu[01-02] CPUs=64 \\\n  Gres=gpu:a100:4(S:0-1),nvme:1\n"
        "nodename=login Gres=gpu:2\n"
    )
    slurm = lab.find_lab({"SLURM_CONF": str(conf)})
    assert slurm.nodes == ("gpu01", "gpu02", "login")
    assert (slurm.gpus_per_node, slurm.accounting, slurm.isolated) == (2, True, False)
    with pytest.raises(lab.LabError, match="cannot be read"):
        lab.find_lab({"SLURM_CONF": str(tmp_path / "none")})


def test_foreign_directory_is_not_removed(home: Path) -> None:
    """`down` refuses to remove a directory without a lab's journal."""
    precious = lab_paths.labs_home() / "t" / "precious"
    precious.parent.mkdir(parents=True)
    precious.touch()
    with pytest.raises(lab.LabError, match="by hand"):
        lab.stop_lab("t")
    assert precious.exists()
    precious.unlink()


def test_only_the_labs_processes_are_found() -> None:
    """Finds processes with the token, their children, and a job's processes; not a user's shell."""
    conf = Path("/x/slurm.conf")
    token = f"token-{os.getpid()}"
    child = "import subprocess; subprocess.run(['sleep', '60'])"
    variables = (
        {lab_processes.TOKEN_VARIABLE: token},
        {"SLURM_CONF": str(conf), "SLURMD_NODENAME": "node0", "MARK": token},
        {"SLURM_CONF": str(conf)},
    )
    started = [
        subprocess.Popen([sys.executable, "-c", child], env=environ) for environ in variables
    ]
    try:
        pids: set[int] = set()
        while not {started[0].pid, started[1].pid} < pids or len(pids) < 4:
            pids = {process.pid for process in lab_processes.find_processes(token, [conf])}
        assert len(pids) == 4
        assert started[2].pid not in pids
        assert lab_processes.end(lab_processes.find_processes(token, [conf]), 5.0) == []
        assert started[2].poll() is None
    finally:
        tree = lab_processes.read_parents()
        for process in started:
            for pid in (pid for pid, parent in tree.items() if parent == process.pid):
                os.kill(pid, 9)
            process.kill()
            process.wait()


def test_name_is_claimed_once(home: Path) -> None:
    """Of several concurrent claims of a name one succeeds; the others say that it is taken."""
    code = (
        "import sys, time\n"
        "from pytest_clustersmoke.lab import LabError, LabSettings\n"
        "from pytest_clustersmoke.lab.lab_claim import claim\n"
        "try:\n"
        "    claim(LabSettings(name='t'), print)\n"
        "    print('got it', flush=True)\n"
        "    sys.stdin.read()\n"
        "except LabError as error:\n"
        "    print(error, flush=True)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = sorted(claimer.stdout.readline() for claimer in started if claimer.stdout)
    for claimer in started:
        claimer.communicate()
    assert answers[0] == "got it\n"
    assert all("lab t is already starting" in line for line in answers[1:])
