"""Labs with accounting, with memory limits, and with isolated nodes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_state, memory_limits

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., lab.Lab]

NODE = """
import os, socket, sys
from pathlib import Path
name = socket.gethostname()
address = socket.gethostbyname(name)
links = ",".join(sorted(entry.name for entry in Path("/sys/class/net").iterdir()))
private = [path for path in ("/tmp", "/dev/shm") if not os.listdir(path)]
for path in private:
    Path(path, "mine").touch()
if name == "node0":
    with socket.create_server((address, 0)) as server:
        Path("port").write_text(str(server.getsockname()[1]))
        received = server.accept()[0].makefile().read()
else:
    while not os.path.exists("port") or not Path("port").read_text():
        pass
    with socket.create_connection(("node0", int(Path("port").read_text()))) as client:
        client.sendall(name.encode())
    received = ""
print(name, os.environ["SLURMD_NODENAME"], address, links, *private, f"received:{received}")
"""


def namespaces(pids: Iterable[int]) -> set[str]:
    """The namespaces of those of these processes that still run."""
    links = set()
    for pid in pids:
        for kind in ("net", "mnt", "uts"):
            with contextlib.suppress(OSError):
                links.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return links


def test_accounting_refuses_unknown_accounts_and_qos(start: Start, command: Run) -> None:
    """An unknown account and an unknown QOS are refused; known ones run, and sacct knows them."""
    slurm = start(accounting=True)
    assert slurm.accounting
    job = ("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")
    refused = command(*job, "--account=nosuch", lab=slurm)
    assert refused.returncode == 1
    assert "Invalid account" in refused.stderr
    assert "Invalid qos" in command(*job, "--qos=nosuch", lab=slurm).stderr
    taken = [
        command(*job, *words, lab=slurm)
        for words in ((), ("--account=lab", "--qos=normal"), ("--qos=standby",))
    ]
    assert [answer.returncode for answer in taken] == [0, 0, 0]
    ids = [answer.stdout.strip() for answer in taken]
    sacct = ("sacct", "-n", "-X", "-P", "-j", ",".join(ids), "-o", "JobID,State,Account,QOS")
    wanted = [f"{ids[0]}|COMPLETED|lab|normal"]
    wanted += [f"{ids[1]}|COMPLETED|lab|normal", f"{ids[2]}|COMPLETED|lab|standby"]
    deadline = time.monotonic() + 15
    lines: list[str] = []
    while lines != wanted and time.monotonic() < deadline:
        lines = command(*sacct, lab=slurm).stdout.splitlines()
        time.sleep(0.1)
    assert lines == wanted


def test_accounting_leaves_nothing_behind(start: Start) -> None:
    """The database and slurmdbd end with the lab."""
    start(accounting=True, nodes=1)
    record = lab_state.list_running()[0]
    assert {"mariadbd", "slurmdbd"} < {process.role for process in record.daemons}
    lab.stop_lab("t")
    assert not any(process.alive for process in record.daemons)
    assert not record.files.root.exists()


def test_memory_is_limited_by_control_groups(start: Start, command: Run) -> None:
    """The kernel kills a task that uses more memory than its job requested, only on that node; the
    lab's control groups are removed with the lab."""
    slurm = start(memory=True)
    take = "import os; bytearray((300 if os.environ['SLURM_NODEID'] == '1' else 1) << 20)"
    program = (sys.executable, "-c", take)
    limited = command("srun", "--nodes=2", "--mem=100M", *program, lab=slurm)
    assert limited.returncode != 0
    assert "node1: task 1: Out Of Memory" in limited.stderr
    assert command("srun", "--nodes=2", *program, lab=slurm).returncode == 0
    groups = memory_limits.HIERARCHY / f"clustersmoke_{lab_state.list_running()[0].token}"
    assert groups.is_dir()
    lab.stop_lab("t")
    assert not groups.exists()


def test_isolated_nodes_are_separate_hosts(start: Start, command: Run, home: Path) -> None:
    """Each node has its own name, address, interfaces, /tmp and /dev/shm, and reaches the others
    by name over TCP; sbatch, squeue and srun work from the host's shell."""
    slurm = start(isolated=True)
    assert slurm.isolated
    (home / "node.py").write_text(NODE)
    python = str(Path(sys.base_prefix) / "bin/python3")
    ran = command("srun", "--nodes=2", python, "node.py", lab=slurm)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in sorted(ran.stdout.splitlines())]
    networks = {line[2].rpartition(".")[0] for line in lines}
    assert len(networks) == 1
    network = networks.pop()
    assert network.startswith("10.77.")
    shared = ["eth0,lo", "/tmp", "/dev/shm"]
    assert lines == [
        ["node0", "node0", f"{network}.11", *shared, "received:node1"],
        ["node1", "node1", f"{network}.12", *shared, "received:"],
    ]
    batch = "--wrap=srun hostname"
    job = command("sbatch", "--wait", "--nodes=2", "--output=job.out", batch, lab=slurm)
    assert job.returncode == 0, job.stderr
    assert sorted((home / "job.out").read_text().split()) == ["node0", "node1"]


def test_two_isolated_labs_leave_nothing_behind(start: Start, command: Run) -> None:
    """Two run side by side on separate networks; each leaves no interface, namespace or mount
    when it ends."""
    start("one", isolated=True)
    two = start("two", isolated=True)
    first, second = lab_state.list_running()
    links = [Path("/sys/class/net") / name for record in (first, second) for name in record.links]
    assert len(links) == 2
    assert all(link.exists() for link in links)
    held = namespaces(process.pid for process in first.daemons) - namespaces([os.getpid()])
    # The hub's network; each node's network, mounts and name; slurmctld's mounts.
    assert len(held) == 1 + 2 * 3 + 1
    lab.stop_lab("one")
    assert [link.exists() for link in links] == [False, True]
    assert not any(process.alive for process in first.daemons)
    assert not held & namespaces(
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()
    )
    names = command("srun", "--nodes=2", "hostname", lab=two).stdout.split()
    assert sorted(names) == ["node0", "node1"]
    lab.stop_lab("two")
    assert not any(link.exists() for link in links)


def test_isolated_lab_below_tmp_is_refused(start: Start, tmp_path: Path) -> None:
    """The nodes would not see its files; the message says so and names the option."""
    if not str(tmp_path.resolve()).startswith("/tmp/"):
        pytest.skip("the temporary directory of these tests is not below /tmp")
    with pytest.raises(lab.LabError, match=r"private to each node .* --dir"):
        start(isolated=True, directory=tmp_path / "lab")
