"""SSH servers of a test's own: Debian's sshd with its own keys and configuration, no service.

`python -m tests.support.ssh_servers` installs OpenSSH (on Debian, as root), or says why it cannot.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_state, packages
from tests.support import debian
from tests.support.labs import running_lab
from tests.support.waiting import wait_for

PROGRAMS = {"openssh-server": "sshd", "openssh-client": "ssh"}
NAMESPACES = ("--net", "--uts", "--mount")
SSH_PORT = 2222
RUN = Path("/run/sshd")  # sshd refuses to start without it; the service would make it


def find_obstacle() -> str | None:
    """Why no SSH server can be started here; None if one can."""
    missing = [package for package, program in PROGRAMS.items() if not packages.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed; run `make ssh` as root on Debian or Ubuntu"
    if os.geteuid() != 0:
        return "an SSH server that lets its user log in needs root; run it as root"
    return None


def need_sshd() -> None:
    """Skip the test if no SSH server can run here; with CLUSTERSMOKE_REQUIRE_LAB=1, fail it."""
    reason = find_obstacle()
    if reason and os.environ.get("CLUSTERSMOKE_REQUIRE_LAB"):
        pytest.fail(f"an SSH server is required here: {reason}", pytrace=False)
    if reason:
        pytest.skip(f"no SSH server here: {reason}")


@dataclass
class Server:
    """An sshd, and how a profile names it."""

    address: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    prefix: tuple[str, ...] = ()
    key: str = ""
    hold: socket.socket | None = None  # gives the port to no other process for as long as it lives

    @property
    def entry(self) -> dict[str, object]:
        return {"host": self.address, "port": self.port}

    @property
    def logins(self) -> int:
        """How often a client was let in, also by earlier servers at this address and port."""
        return self.log.read_text().count("Accepted publickey")

    def kill(self) -> None:
        """End the server and its connections; what they started goes on."""
        children = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True
        ).stdout.split()
        for pid in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@dataclass
class Servers:
    """Servers with one user key, and the files of a client that knows them."""

    folder: Path
    marker: str
    servers: list[Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        RUN.mkdir(exist_ok=True, mode=0o755)
        for name in ("user", "stranger"):
            make_key(self.folder / name)
        self.known_hosts = self.folder / "known_hosts"
        self.config = self.folder / "ssh_config"
        self.config.write_text(
            f"Host *\n  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
            f"  IdentityFile {self.folder / 'user'}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        )
        self.known_hosts.touch()

    def start(
        self,
        lines: Sequence[str] = (),
        address: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
        port: int = 0,
    ) -> Server:
        """Start a server with more lines of its configuration, and wait until it listens."""
        hold = None if port else hold_port()
        port = port if hold is None else int(hold.getsockname()[1])
        name = f"{address}-{port}"
        host_key = self.folder / f"host-{name}"
        if not host_key.exists():
            make_key(host_key)
            public = " ".join(Path(f"{host_key}.pub").read_text().split()[:2])
            with self.known_hosts.open("a") as known:
                known.write(f"[{address}]:{port} {public}\n")
        own = [
            f"Port {port}",
            f"ListenAddress {address}",
            f"HostKey {host_key}",
            f"AuthorizedKeysFile {self.folder / 'user.pub'}",
            f"SetEnv {self.marker}=1",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PermitRootLogin yes",
            "PrintMotd no",
        ]
        config = self.folder / f"sshd-{name}.conf"
        config.write_text("\n".join([*lines, *own]) + "\n")  # of two lines, the first counts
        log = self.folder / f"sshd-{name}.log"
        sshd = packages.program_path("sshd")
        process = subprocess.Popen(
            [*prefix, sshd, "-D", "-f", str(config), "-E", str(log)],
            env={**os.environ, self.marker: "1"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        server = Server(address, port, process, log, prefix, hold=hold)
        self.servers.append(server)
        wait_for(f"sshd at {name}", lambda: _accepts(address, port))
        return server

    def stop(self) -> None:
        for server in self.servers:
            if server.process.poll() is None:
                server.kill()
            if server.hold is not None:
                server.hold.close()

    def profile(self, *servers: Server) -> dict[str, Any]:
        """The keys of a profile that has these servers as hosts."""
        return {
            "backend": "ssh",
            "hosts": [server.entry for server in servers or self.servers],
            "ssh": {"user": pwd.getpwuid(os.getuid()).pw_name, "config": str(self.config)},
        }


@contextlib.contextmanager
def ssh_servers(folder: Path, marker: str) -> Iterator[Servers]:
    """Servers that end with the block."""
    need_sshd()
    servers = Servers(folder, marker)
    try:
        yield servers
    finally:
        servers.stop()


class IsolatedHosts:
    """Hosts with addresses, mounts and a /tmp of their own, each with an SSH server."""

    def __init__(self, name: str, servers: Servers) -> None:
        (record,) = [record for record in lab_state.list_running() if record.name == name]
        holders = {daemon.role: daemon.pid for daemon in record.daemons}
        lines = record.files.hosts.read_text().splitlines()
        addresses = {names[0]: address for address, *names in map(str.split, lines) if names}
        self.servers = servers
        self._enter = {
            node: ("nsenter", "--target", str(holders[f"host-{node}"]), *NAMESPACES, "--")
            for node in addresses
            if f"host-{node}" in holders
        }
        self.by_name = {
            node: servers.start(address=addresses[node], prefix=enter, port=SSH_PORT)
            for node, enter in self._enter.items()
        }

    def start_again(self, node: str) -> None:
        """Start the host's SSH server again after it was killed, with its address, port and key."""
        old = self.by_name[node]
        self.by_name[node] = self.servers.start(
            address=old.address, prefix=old.prefix, port=old.port
        )

    def run(self, node: str, script: str) -> None:
        """Run a script on the host, beside its SSH server."""
        command = [*self._enter[node], "sh", "-ec", script]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (script, done.stderr)

    def name_of(self, address: str) -> str:
        return next(node for node, server in self.by_name.items() if server.address == address)


@contextlib.contextmanager
def isolated_hosts(folder: Path, marker: str, count: int = 4) -> Iterator[IsolatedHosts]:
    """The hosts of an isolated lab, whose Slurm nobody uses. Everything must lie in a folder that
    they see (`visible_folder`)."""
    need_sshd()
    settings = lab.LabSettings(name="hosts", nodes=count, isolated=True, directory=folder / "lab")
    with running_lab(settings) as running, ssh_servers(folder / "ssh", marker) as servers:
        yield IsolatedHosts(running.name, servers)


def make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A free port, which no other process gets inside the block."""
    with hold_port() as hold:
        yield int(hold.getsockname()[1])


def hold_port() -> socket.socket:
    """A free port, which only a socket with SO_REUSEADDR, as a server's, can bind."""
    hold = socket.socket()
    hold.bind(("127.0.0.1", 0))  # before the option: no other process has this port
    hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return hold


def _accepts(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), 1):
            return True
    except OSError:
        return False


def main() -> int:
    missing = [package for package, program in PROGRAMS.items() if not packages.which(program)]
    return debian.install(missing, "`backend: ssh`")


if __name__ == "__main__":
    sys.exit(main())
