"""Finds Prometheus, its promtool and its node exporter, or installs them, and starts them.

`python -m tests.support.prometheus` installs them (on Debian, as root), or says why it cannot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml

from pytest_clustersmoke.lab import packages
from tests.support import debian
from tests.support.ssh_servers import held_port
from tests.support.waiting import wait_for

REQUIRE = "CLUSTERSMOKE_REQUIRE_PROMETHEUS"
SERVER, PROMTOOL, EXPORTER = "prometheus", "promtool", "prometheus-node-exporter"
PACKAGES = {SERVER: "prometheus", PROMTOOL: "prometheus", EXPORTER: "prometheus-node-exporter"}
PATIENCE_S = 60.0


def need_program(name: str) -> str:
    """The path of one of the programs. Without it the test is skipped, or fails if REQUIRE is
    set."""
    path = packages.which(name)
    if path is None:
        why = f"{name} is not installed: apt-get install {PACKAGES[name]}"
        assert not os.environ.get(REQUIRE), why
        pytest.skip(why)
    return path


def promtool(*words: str | Path) -> str:
    """Run promtool, and return what it prints."""
    command = [need_program(PROMTOOL), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Server:
    """A Prometheus that runs."""

    url: str

    def ask(self, path: str, **words: str) -> Any:
        """What its API answers."""
        with build_opener(ProxyHandler({})).open(
            f"{self.url}/api/v1/{path}?{urlencode(words)}", timeout=PATIENCE_S
        ) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str, when: float | None = None) -> list[tuple[Any, float]]:
        """Labels and value of each series at a time, or now."""
        at = {} if when is None else {"time": str(when)}
        result = self.ask("query", query=expression, **at)["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def query_range(
        self, expression: str, start: float, end: float, step_s: float
    ) -> list[list[float]]:
        """The values of each series between two times."""
        span = {"start": str(start), "end": str(end), "step": str(step_s)}
        result = self.ask("query_range", query=expression, **span)["result"]
        return [[float(value) for _, value in one["values"]] for one in result]


@contextmanager
def started_server(
    folder: Path, targets: Sequence[str] = (), rules: Sequence[Path] = ()
) -> Iterator[Server]:
    """Debian's Prometheus on a free port of loopback, whose data is in `folder`/data. It scrapes
    the targets and evaluates the rules every second."""
    scrapes = {"job_name": "here", "static_configs": [{"targets": [*targets]}]}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [scrapes] if targets else [],
        "rule_files": [str(path) for path in rules],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        words = (
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=400d",
            f"--web.listen-address={address}",
        )
        with _running(folder, SERVER, words, f"http://{address}/-/ready"):
            yield Server(f"http://{address}")


@contextmanager
def started_exporter(folder: Path, textfiles: Path) -> Iterator[str]:
    """The address of Debian's node exporter, which collects the textfiles of a directory."""
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        words = (
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={textfiles}",
            f"--web.listen-address={address}",
        )
        with _running(folder, EXPORTER, words, f"http://{address}/metrics"):
            yield address


@contextmanager
def _running(folder: Path, name: str, words: Sequence[str], ready: str) -> Iterator[None]:
    """A program, from when it answers at an address; it has ended at the end."""
    program, log = need_program(name), folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([program, *words], stdout=output, stderr=output, cwd=folder)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            with build_opener(ProxyHandler({})).open(ready, timeout=PATIENCE_S) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    try:
        wait_for(f"{name} to be ready", is_ready, PATIENCE_S)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def main() -> int:
    missing = {package for program, package in PACKAGES.items() if not packages.which(program)}
    return debian.install(missing, "rules and dashboard")


if __name__ == "__main__":
    sys.exit(main())
