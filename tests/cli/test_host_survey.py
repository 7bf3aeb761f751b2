"""`clustersmoke init --hosts`: hosts that are asked over ssh become a profile, on real SSH servers
of this machine. No host has GPUs; where a test needs some, a fake `nvidia-smi` lists them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.config.profile import Profile
from tests.cli.recorded_slurm import run
from tests.support.ssh_servers import Server, Servers, ssh_servers

Leftovers = tuple[str, Callable[[], list[str]]]
Done = subprocess.CompletedProcess[str]
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def servers(tmp_path: Path, leftovers: Leftovers) -> Iterator[Servers]:
    with ssh_servers(tmp_path / "ssh", leftovers[0]) as servers:
        yield servers


@pytest.fixture
def init(tmp_path: Path, servers: Servers) -> Callable[..., Done]:
    """Run `clustersmoke init` for these hosts; it writes into `new`."""

    def call(hosts: str, *words: str, **environ: str) -> Done:
        own = ("--hosts", hosts, "--ssh-config", servers.config, *words, tmp_path / "new")
        return run(None, *map(str, own), cwd=tmp_path, PATH="/usr/bin:/bin", **environ)

    return call


def with_gpus(servers: Servers, *models: str) -> Server:
    """A server whose `nvidia-smi`, a fake, lists these GPUs."""
    folder = servers.folder / f"bin{len(servers.servers)}"
    folder.mkdir()
    lines = [f"GPU {index}: {model} (UUID: GPU-{index})" for index, model in enumerate(models)]
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\ncat <<'end'\n" + "\n".join(lines) + "\nend\n")
    program.chmod(0o755)
    return servers.start([f"SetEnv {servers.marker}=1 PATH={folder}:/usr/bin:/bin"])


def join(*servers: Server) -> str:
    return ",".join(f"{server.address}:{server.port}" for server in servers)


def written(folder: Path) -> tuple[Profile, str]:
    path = folder / "new" / "cluster.yaml"
    file: Any = load_cluster_file(path, {"HOME": "/home/me"})
    (name,) = file.names
    return file.profile(name), path.read_text()


def test_hosts_become_a_profile(
    tmp_path: Path, servers: Servers, init: Callable[..., Done]
) -> None:
    """Two hosts without GPUs: small phases of at most two nodes, an interpreter that was started
    there, and a directory that both see. Each is logged in to once."""
    first, second = servers.start(), servers.start()
    done = init(join(first, second))
    assert done.returncode == 0, done.stderr
    made, text = written(tmp_path)
    assert (made.name, made.backend, made.hardware.device) == ("hosts", "ssh", "cpu")
    assert [host.port for host in made.hosts] == [first.port, second.port]
    assert made.ssh.config == str(servers.config)
    assert made.shared_dir == tmp_path / "new" / "runs" and not made.shared_dir.exists()
    assert {phase.nodes for phase in made.phases.values() if phase.nodes} <= {1, 2}
    assert "ddp_2node" in made.phases and "# zero1_4node is left out: needs 4 nodes" in text
    assert "check this" in text and f"python: {sys.executable}" in text
    for server in (first, second):
        assert f"  {join(server)}: no GPU, " in done.stdout
        assert server.log.read_text().count("Accepted publickey") == 1


@pytest.mark.slow
def test_written_profile_runs(tmp_path: Path, servers: Servers, init: Callable[..., Done]) -> None:
    """pytest takes the files as they are: a phase on both hosts trains, and meets its criteria."""
    done = init(join(servers.start(), servers.start()))
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "pytest", "--cluster", "hosts", "-k", "ddp_2node"]
    run = subprocess.run(command, cwd=tmp_path / "new", capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "FIT" in run.stdout and "ddp_2node" in run.stdout


def test_phases_fit_the_gpus_of_the_hosts(
    tmp_path: Path, servers: Servers, init: Callable[..., Done]
) -> None:
    """GPUs are named as the driver does, and phases that need more are left out. A setup that fails
    there is marked."""
    pair = with_gpus(servers, H100, H100), with_gpus(servers, H100, H100)
    words = ("--cluster", "mine", "--shared-dir", str(tmp_path / "runs"))
    done = init(join(*pair), *words, LOADEDMODULES="cuda/12.1")
    assert done.returncode == 0, done.stderr
    made, text = written(tmp_path)
    hardware = made.hardware
    assert (hardware.gpu, hardware.device, hardware.gpus_per_node) == (H100, "cuda", 2)
    assert made.name == "mine" and made.shared_dir == tmp_path / "runs"
    assert f"  {join(pair[1])}: 2 x {H100}, " in done.stdout
    assert "the setup line `module purge` failed" in text and "module load cuda/12.1" in text
    phases = made.phases
    assert phases["allreduce_multinode"].nodes == 2 and phases["ddp_2gpu"].gpus_per_node == 2
    assert "zero1_4node" not in phases and "lora_sft_2node" not in phases
    assert not any(phase.slurm for phase in phases.values()) and made.require == ("transports",)


def test_hosts_with_different_gpus_are_refused(
    tmp_path: Path, servers: Servers, init: Callable[..., Done]
) -> None:
    """One may have lost a GPU, and leaving it out unasked would hide that."""
    whole, half = with_gpus(servers, H100, H100), with_gpus(servers, H100)
    done = init(join(whole, half))
    assert done.returncode == 2 and not (tmp_path / "new").exists()
    (line,) = done.stderr.splitlines()
    assert f"{join(whole)} has 2 x {H100}, {join(half)} has 1 x {H100}; expected" in line


def test_hosts_that_cannot_be_used_are_named_at_once(
    tmp_path: Path, servers: Servers, init: Callable[..., Done]
) -> None:
    """One line for each, with what to do; nothing is written, and nothing stays."""
    fine, gone = servers.start(), servers.start()
    deaf = servers.start(["ForceCommand echo no; exit 1"])
    gone.kill()
    done = init(join(fine, gone, deaf))
    assert done.returncode == 2 and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"clustersmoke: --hosts: {join(gone)}: ssh: connect to host")
    assert "Connection refused; check that the host is up" in first
    assert f"{join(deaf)}: it accepts the login but runs no command" in second
    assert not (tmp_path / "new").exists()


def test_directory_that_a_host_does_not_see_is_refused(
    tmp_path: Path, servers: Servers, init: Callable[..., Done]
) -> None:
    """A host whose `cat` finds nothing does not see what this machine wrote."""
    blind = with_gpus(servers)
    program = servers.folder / "bin0" / "cat"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    done = init(join(blind))
    assert done.returncode == 2 and not (tmp_path / "new").exists()
    (line,) = done.stderr.splitlines()
    assert "it does not see " in line and "`shared_dir`" in line


@pytest.mark.parametrize(
    ("hosts", "words", "message"),
    [
        ("-oProxyCommand=x", (), "hosts[0].host is `-oProxyCommand=x`; expected a host's name"),
        ("a,,b", (), "--hosts: hosts[1].host is blank"),
        ("a,a", (), "--hosts: `a` is in hosts twice"),
        ("a$b", (), "expected a host's name or address"),
        ("a:70000", (), "hosts[0].port is `70000`"),
        ("a", ("--partition", "gpu"), "--partition: --partition and --hosts exclude each other"),
    ],
)
def test_bad_lists_of_hosts_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hosts: str,
    words: tuple[str, ...],
    message: str,
) -> None:
    """In one line, before anything is asked."""
    assert main(["init", str(tmp_path / "new"), f"--hosts={hosts}", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not (tmp_path / "new").exists()


def test_ssh_config_without_hosts_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--ssh-config", "x"]) == 2
    message = "clustersmoke: --ssh-config: this option needs --hosts; omit it\n"
    assert capsys.readouterr().err == message
