"""Scripts on a host over one connection, against a real sshd on this machine: whatever is wrong
ends in one message, in time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.hosts import name_hosts
from pytest_clustersmoke.jobs.ssh_client import (
    MAX_SOCKET_PATH,
    NO_LOGIN,
    NO_SHELL,
    UNREACHABLE,
    WRONG_KEY,
    HostUnavailable,
    SocketFolder,
    SshHost,
)
from tests.support.evidence import make_profile
from tests.support.ssh_servers import Server, Servers, make_key, ssh_servers
from tests.support.waiting import PATIENCE_S

SHORT_S, LONG_S, CONNECT_S = 3.0, 60.0, 120.0
HANGS = "while kill -0 $PPID; do sleep 0.2; done 2>/dev/null"  # until the connection ends
Connect = Callable[..., SshHost]


@pytest.fixture
def servers(tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]) -> Iterator[Servers]:
    with ssh_servers(tmp_path / "ssh", leftovers[0]) as servers:
        yield servers


@pytest.fixture
def connect(tmp_path: Path, servers: Servers) -> Iterator[Connect]:
    """Makes the client's side of a host; its connection ends with the test."""
    hosts: list[SshHost] = []
    sockets = SocketFolder(os.environ)

    def make(server: Server | dict[str, Any], called: str = "", **ssh: object) -> SshHost:
        keys = servers.profile()
        keys["hosts"] = [server.entry if isinstance(server, Server) else server]
        keys["ssh"] = {**keys["ssh"], "connect_s": CONNECT_S, **ssh}
        profile = make_profile(tmp_path, **keys)
        ((name, host),) = name_hosts(profile.hosts).items()
        hosts.append(SshHost(called or name, host, profile, sockets))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()
    sockets.remove()


def refused(
    host: SshHost, kind: str, timeout_s: float = PATIENCE_S, script: str = "echo never"
) -> str:
    """The message with which a script is not run, in time."""
    began = time.monotonic()
    with pytest.raises(HostUnavailable) as caught:
        host.run(script, timeout_s)
    assert time.monotonic() - began < timeout_s + 2
    assert caught.value.kind == kind, str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check_limit(host: SshHost, kind: str, said: str, script: str = "echo never") -> None:
    """A script that only a limit ends is refused, with these words. On a slow machine a login alone
    may take as long as a short one."""
    try:
        assert said in refused(host, kind, SHORT_S, script)
    except AssertionError:
        assert said in refused(host, kind, LONG_S, script)


def test_hosts_whose_names_end_alike_have_a_connection_each(
    servers: Servers, connect: Connect
) -> None:
    """Otherwise one of them would answer for both."""
    for number in range(2):
        server = servers.start()
        host = connect(server, f"gpu00{number}.cluster.hpc.university.example")
        assert host.run("echo here", PATIENCE_S) == ["here"] and server.logins == 1


def test_scripts_share_one_connection(servers: Servers, connect: Connect) -> None:
    """The server sees one login; each script's lines come back, errors included."""
    server = servers.start()
    host = connect(server)
    assert host.run("echo one; echo two >&2", PATIENCE_S) == ["one", "two"]
    assert host.run("cat; echo 'three  3'; exit 3", PATIENCE_S) == ["three  3"]  # nothing to read
    assert server.log.read_text().count("Accepted publickey") == 1


def test_killed_connection_is_made_anew(servers: Servers, connect: Connect) -> None:
    server = servers.start()
    host = connect(server)
    host.run(":", PATIENCE_S)
    assert host._master is not None
    host._master.send_signal(signal.SIGKILL)
    host._master.wait()
    assert host.run("echo again", PATIENCE_S) == ["again"]
    assert server.log.read_text().count("Accepted publickey") == 2


def test_connection_ends_with_this_process(servers: Servers, connect: Connect) -> None:
    """Closing its input, as the kernel does for a process that is killed, ends the connection."""
    host = connect(servers.start())
    host.run(":", PATIENCE_S)
    master = host._master
    assert master is not None and master.stdin is not None
    master.stdin.close()
    assert master.wait(PATIENCE_S) is not None


def test_unknown_and_changed_host_keys_are_refused(servers: Servers, connect: Connect) -> None:
    server = servers.start()
    known = servers.known_hosts.read_text()
    servers.known_hosts.write_text("")
    assert "Host key verification failed" in refused(connect(server), WRONG_KEY)
    make_key(servers.folder / "other")
    other = (servers.folder / "other.pub").read_text().split()[1]
    name, kind, _ = known.split()
    servers.known_hosts.write_text(f"{name} {kind} {other}\n")
    assert "Host key verification failed" in refused(connect(server), WRONG_KEY)
    assert servers.known_hosts.read_text().split() == [name, kind, other]  # nothing is learnt


def test_password_prompt_is_never_waited_for(servers: Servers, connect: Connect) -> None:
    server = servers.start(["PubkeyAuthentication no", "PasswordAuthentication yes"])
    message = refused(connect(server), NO_LOGIN)
    assert message.endswith("Permission denied (password).") or "Permission denied" in message


def test_strange_key_is_refused(servers: Servers, connect: Connect) -> None:
    server = servers.start()
    identity = str(servers.folder / "stranger")
    servers.config.write_text(servers.config.read_text().replace("IdentityFile", "#"))
    assert "Permission denied" in refused(connect(server, identity=identity), NO_LOGIN)
    own = connect({**server.entry, "identity": str(servers.folder / "user")}, identity=identity)
    assert own.run("echo in", PATIENCE_S) == [
        "in"
    ]  # a host's own identity comes before the default


def test_banner_is_left_out(servers: Servers, connect: Connect) -> None:
    """Also one that asks: nobody answers it, and nothing waits."""
    banner = servers.folder / "banner"
    banner.write_text("Authorised use only. Do you accept? [y/N] \n")
    host = connect(servers.start([f"Banner {banner}"]))
    assert host.run("echo in", PATIENCE_S) == ["in"]


def test_refusals_of_the_network_are_named(servers: Servers, connect: Connect) -> None:
    server = servers.start()
    server.kill()
    assert "Connection refused" in refused(connect(server), UNREACHABLE)
    nowhere = {"host": "no-such-host.invalid"}
    assert "no-such-host.invalid" in refused(connect(nowhere), UNREACHABLE)


def test_server_that_says_nothing_is_given_up(connect: Connect) -> None:
    """A port that accepts connections and never speaks."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        entry = {"host": "127.0.0.1", "port": silent.getsockname()[1]}
        message = refused(connect(entry, connect_s=1), UNREACHABLE)
    assert message == "Connection timed out during banner exchange"


def test_login_shell_that_prints_does_not_matter(servers: Servers, connect: Connect) -> None:
    """What start-up files print, before and after, is not taken for an answer."""
    noise = 'ForceCommand echo "Welcome!"; printf "no newline"; eval "$SSH_ORIGINAL_COMMAND"; echo'
    host = connect(servers.start([noise]))
    assert host.run("echo in", PATIENCE_S) == ["in"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f'printf "Accept the terms? [y/N] "; read answer; {HANGS}', "Accept the terms? [y/N]"),
        ("echo This account is not available.; exit 1", "This account is not available."),
        ("yes", "`y`"),
        ("exit 0", "status 0"),
    ],
    ids=["asks", "refuses", "prints", "ends"],
)
def test_login_shell_that_runs_no_command_is_named(
    servers: Servers, connect: Connect, command: str, said: str
) -> None:
    """It asks, refuses, prints without end or ends."""
    host = connect(servers.start([f"ForceCommand {command}"]))
    check_limit(host, NO_SHELL, said)


@pytest.mark.parametrize(
    ("prints", "silent"),
    [("printf 'Accept? '; ", False), pytest.param("", True, marks=pytest.mark.slow)],
)
def test_login_shell_that_only_takes_long_is_told_from_one_that_asks(
    servers: Servers, connect: Connect, prints: str, silent: bool
) -> None:
    """It is worth another try if it printed nothing."""
    host = connect(servers.start([f"ForceCommand {prints}{HANGS}"]))
    with contextlib.suppress(HostUnavailable):
        host.run(":", SHORT_S)  # on a slow machine, the login alone takes this time
    with pytest.raises(HostUnavailable) as caught:
        host.run(":", LONG_S / 4)
    assert (caught.value.kind, caught.value.silent) == (NO_SHELL, silent)


def test_command_that_hangs_is_given_up(servers: Servers, connect: Connect) -> None:
    """It is ended there as well (`leftovers` would find it), and the next one runs."""
    host = connect(servers.start())
    host.run(":", PATIENCE_S)
    check_limit(host, UNREACHABLE, "a command there did not end within", "sleep 600")
    assert host.run("echo in", PATIENCE_S) == ["in"]


def test_sockets_have_short_private_paths(tmp_path: Path) -> None:
    """A long directory for temporary files is passed over."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    folder = SocketFolder({"XDG_RUNTIME_DIR": str(long)})
    path = folder.path
    assert len(str(path)) + 21 <= MAX_SOCKET_PATH and path.stat().st_mode & 0o77 == 0
    folder.remove()
    assert not path.exists()
