"""Phases on hosts without a scheduler, against real SSH servers on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.harness import Suite
from tests.support.ssh_servers import Servers, ssh_servers


@pytest.fixture
def servers(tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]) -> Iterator[Servers]:
    with ssh_servers(tmp_path / "ssh", leftovers[0]) as servers:
        yield servers


@pytest.fixture
def ssh_suite(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], servers: Servers
) -> Suite:
    """An empty suite on two hosts."""
    suite = Suite(tmp_path, leftovers[0])
    servers.start()
    servers.start()
    suite.profile |= servers.profile()
    return suite


def test_phase_runs_on_hosts_of_its_own(ssh_suite: Suite) -> None:
    ssh_suite.phase("small", nodes=2)
    ssh_suite.phase("other", nodes=1)
    outcome = ssh_suite.run_apart()
    assert outcome.ret == 0, outcome.output
