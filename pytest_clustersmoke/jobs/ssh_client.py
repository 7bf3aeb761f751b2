"""Runs shell scripts on one host through one multiplexed connection of OpenSSH's client.

The connection is one `ssh` process, the master. Its session on the host waits for input that we
never send; when this process ends, for any reason, the session sees end-of-file and the master
exits. Scripts run in sessions of their own beside it. Nothing is ever asked: ssh runs in batch
mode, and each script has a time limit. What a login shell prints besides is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..config.hosts import Host
from ..config.profile import Profile
from ..text import sanitize_line

Answer = TypeVar("Answer")

# A control socket's path, with the 17 characters that ssh adds while it makes it (sun_path: 108).
MAX_SOCKET_PATH = 108 - 17 - 1
MAX_OUTPUT = 2**20
MAX_MESSAGE = 300
ALIVE_S, ALIVE_COUNT = 5, 3  # a connection without an answer for 15 s is given up
POLL_S = 0.02
END_S = 2.0
SAYS_WHY_S = 5.0  # for ssh, after its own limit on a connection: its message says more than ours
FAILED = 255  # ssh's own exit status
OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectionAttempts": "1",
    "ServerAliveInterval": str(ALIVE_S),
    "ServerAliveCountMax": str(ALIVE_COUNT),
    "ControlPersist": "no",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "LogLevel": "ERROR",  # leaves a server's banner out
}
# Why a host cannot be used.
UNREACHABLE, WRONG_KEY, NO_LOGIN, NO_SHELL = "unreachable", "wrong key", "no login", "no shell"
HUNG = "hung"  # it answers, and what it is asked to do does not end
ERROR_PATTERNS = (
    (WRONG_KEY, r"host key verification failed|host identification has changed"),
    (WRONG_KEY, r"host key is known for|host key .*revoked"),
    (NO_LOGIN, r"permission denied|too many authentication failures|no supported authentication"),
    (NO_LOGIN, r"no more authentication methods|account (is|has) (locked|expired)"),
)
# Lines that ssh prints beside an error and that do not explain it.
NOISE = re.compile(r"^[@ ]*$|^Warning: Permanently added|^\*\* |^debug", re.IGNORECASE)


class HostUnavailable(Exception):
    """A host did not run a script; the text says why, and `kind` is one of the above. `silent`: its
    SSH server talks to us, and nothing else came in time, as from a host that is busy."""

    def __init__(self, kind: str, message: str, silent: bool = False) -> None:
        super().__init__(message)
        self.kind, self.silent = kind, silent


class CommandHung(HostUnavailable):
    """A host that answers began a script, and did not end it in time."""


class SshHost:
    """One host. Calls may come from several threads."""

    def __init__(self, name: str, host: Host, profile: Profile, sockets: SocketFolder) -> None:
        self.name = name
        self._options = _list_options(host.with_defaults(profile.ssh), profile)
        self._address = host.host
        self._connect_s = profile.ssh.connect_s
        self._sockets = sockets
        self._master: subprocess.Popen[bytes] | None = None
        self._connecting = threading.Lock()

    def run(self, script: str, timeout_s: float) -> list[str]:
        """Run a script of the POSIX shell there, as one command that reads nothing; the lines that
        it prints. Raises HostUnavailable."""
        deadline = time.monotonic() + timeout_s
        socket = self._connect(deadline, timeout_s)
        delimiter = secrets.token_hex(8)
        # The shell runs nothing until it has read the closing brace.
        text = (
            f"{{\necho; echo {delimiter}+\n(\n{script}\n) </dev/null 2>&1\necho {delimiter}-\n}}\n"
        )
        # `timeout` also ends a command that hangs on the host; what it started in another session
        # goes on.
        shell = f"exec timeout -k 1 {timeout_s + 1:.0f} /bin/sh -s"
        command = self._ssh("-S", str(socket), "-o", "ControlMaster=no", shell)
        with _Call(command, self._sockets.environ) as call:
            timed_out = not call.exchange(text.encode(), deadline)
        if call.status == FAILED and not timed_out and self._has_session_ended():
            # A login shell that ends the master's session may also cut this one off; run again on a
            # separate connection to see what it prints.
            with _Call(self._ssh("-S", "none", shell), self._sockets.environ) as call:
                timed_out = not call.exchange(text.encode(), deadline)
        return self._parse(call, delimiter, timed_out, timeout_s)

    @property
    def is_connected(self) -> bool:
        """Whether the connection lives: its SSH server has answered in the last 15 s, even if no
        command does."""
        return self._master is not None and self._master.poll() is None

    def close(self) -> None:
        """End the connection."""
        master, self._master = self._master, None
        if master is None or master.stdin is None:
            return
        with contextlib.suppress(OSError):
            master.stdin.close()
        if master.poll() is None:
            master.terminate()
        try:
            master.wait(END_S)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()

    def _has_session_ended(self) -> bool:
        """Whether the master's session, which never ends by itself, ended on the host's side."""
        if self._master is None:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            return 0 <= self._master.wait(END_S) < FAILED
        return False

    @property
    def command(self) -> str:
        """How a user reaches this host as we do."""
        return " ".join(["ssh", *self._options, "-o BatchMode=yes", self._address])

    def _connect(self, deadline: float, timeout_s: float) -> Path:
        """The control socket of a master that runs; start one if there is none."""
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise HostUnavailable(UNREACHABLE, f"no connection within {timeout_s:g} s")
        try:
            # A path to a socket has room for some hundred bytes, and names may begin and end alike.
            name = hashlib.blake2b(self.name.encode(), digest_size=8).hexdigest()
            socket = self._sockets.path / name
            if self._master is not None and self._master.poll() is None:
                return socket
            socket.unlink(missing_ok=True)
            errors = self._sockets.path / f"{socket.name}.err"
            with errors.open("wb") as stderr:
                self._master = subprocess.Popen(
                    self._ssh("-S", str(socket), "-o", "ControlMaster=yes", "exec cat"),
                    env=self._sockets.environ,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    start_new_session=True,
                )
            until = min(deadline, time.monotonic() + self._connect_s + SAYS_WHY_S)
            while not socket.exists():
                if self._master.poll() is not None:
                    raise _explain(errors.read_text(errors="replace"), "ssh ended")
                if time.monotonic() > until:
                    said = errors.read_text(errors="replace")
                    self.close()
                    why = _explain(said, f"no connection within {timeout_s:g} s")
                    # Without its network, ssh's own limit would have ended it before.
                    raise HostUnavailable(why.kind, str(why), silent=True)
                time.sleep(POLL_S)
            return socket
        except OSError as error:
            raise HostUnavailable(UNREACHABLE, f"ssh cannot be started: {error}") from error
        finally:
            self._connecting.release()

    def _ssh(self, *words: str) -> list[str]:
        *options, command = words
        fixed = [word for key, value in OPTIONS.items() for word in ("-o", f"{key}={value}")]
        return ["ssh", *self._options, *fixed, *options, "-T", "--", self._address, command]

    def _parse(self, call: _Call, delimiter: str, timed_out: bool, timeout_s: float) -> list[str]:
        lines = call.output.decode(errors="replace").splitlines()
        begins = [index for index, line in enumerate(lines) if line.endswith(f"{delimiter}+")]
        ends = [index for index, line in enumerate(lines) if line == f"{delimiter}-"]
        if begins and ends:
            return [sanitize_line(line) for line in lines[begins[0] + 1 : ends[-1]]]
        said = sanitize_line(next((line for line in reversed(lines) if line.strip()), ""))
        printed = f"; its login shell printed `{said[:MAX_MESSAGE]}`" if said else ""
        if begins and timed_out:
            why = f"a command there did not end within {timeout_s:g} s"
            raise CommandHung(UNREACHABLE, why, silent=True)
        if begins:
            raise HostUnavailable(UNREACHABLE, "a command there was cut off")
        if timed_out or (said and call.status != FAILED):
            when = f"within {timeout_s:g} s" if timed_out else f"(status {call.status})"
            why = f"it accepts the login but runs no command {when}"
            raise HostUnavailable(NO_SHELL, why + printed, silent=not said)
        if call.status != FAILED:
            why = f"it accepts the login but runs no command (status {call.status})"
            raise HostUnavailable(NO_SHELL, why)
        raise _explain(call.errors.decode(errors="replace"), "the connection was lost")


class SocketFolder:
    """A private directory, with a short path, for the sockets and messages of connections; made
    when it is first used, and removed with this object."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._making = threading.Lock()

    @property
    def path(self) -> Path:
        with self._making:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="csm-", dir=self._find_place())
            return Path(self._folder.name)

    def remove(self) -> None:
        with self._making:
            if self._folder is not None:
                with contextlib.suppress(OSError):
                    self._folder.cleanup()
            self._folder = None

    def _find_place(self) -> str:
        """A directory in which a socket's path is short enough; `csm-XXXXXXXX/` and 20 more."""
        places = [self.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp", "/run"]
        for place in places:
            if place and len(place) + 34 <= MAX_SOCKET_PATH and os.access(place, os.W_OK | os.X_OK):
                return place
        return "/tmp"


class _Call:
    """One `ssh` with a script as its input, in a session of its own, ended on exit."""

    def __init__(self, command: list[str], environ: Mapping[str, str]) -> None:
        self.output, self.errors = b"", b""
        self.status: int | None = None
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self.status = process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def exchange(self, script: bytes, deadline: float) -> bool:
        """Write the script and read until the command ends; False if it does not in time, or
        prints without end. A pipe holds 64 KiB, so a script can be written at once."""
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        with contextlib.suppress(OSError):
            stdin.write(script)
            stdin.close()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ, "output")
            selector.register(stderr, selectors.EVENT_READ, "errors")
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0 or max(len(self.output), len(self.errors)) > MAX_OUTPUT:
                    return False
                for key, _ in selector.select(left):
                    part = os.read(key.fd, 2**16)
                    if part:
                        setattr(self, key.data, getattr(self, key.data) + part)
                    else:
                        selector.unregister(key.fileobj)
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def ask_hosts(
    hosts: Iterable[SshHost], ask: Callable[[SshHost], Answer]
) -> dict[SshHost, Answer | HostUnavailable]:
    """Ask all these hosts at the same time; each one's answer, or why it gave none."""
    hosts = list(hosts)

    def answer(host: SshHost) -> Answer | HostUnavailable:
        try:
            return ask(host)
        except HostUnavailable as error:
            return error

    if not hosts:
        return {}
    with ThreadPoolExecutor(len(hosts), "clustersmoke-ssh") as pool:
        return dict(zip(hosts, pool.map(answer, hosts), strict=True))


def _list_options(host: Host, profile: Profile) -> list[str]:
    config, identity = profile.ssh.config, host.identity
    return [
        *(["-F", str(Path(config).expanduser())] if config else []),
        *(["-p", str(host.port)] if host.port else []),
        *(["-l", host.user] if host.user else []),
        *(["-i", str(Path(identity).expanduser())] if identity else []),
        *(["-o", "IdentitiesOnly=yes"] if identity else []),
        *("-o", f"ConnectTimeout={max(1, round(profile.ssh.connect_s))}"),
    ]


def _explain(errors: str, otherwise: str) -> HostUnavailable:
    """Why ssh failed, from what it printed."""
    lines = [sanitize_line(line) for line in errors.splitlines() if not NOISE.match(line.strip())]
    text = "\n".join(lines)
    kind = next(
        (kind for kind, pattern in ERROR_PATTERNS if re.search(pattern, text, re.IGNORECASE)),
        UNREACHABLE,
    )
    return HostUnavailable(kind, (lines[-1] if lines else otherwise)[:MAX_MESSAGE])
