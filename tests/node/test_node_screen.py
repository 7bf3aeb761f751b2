"""What a node finds of itself: alone, in a tenth of a second, and whatever hangs there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.screen_files import ScreenFiles, parse_answer
from pytest_clustersmoke.node import core_speed
from pytest_clustersmoke.node.node_screen import screen_node
from tests.support.load import cpu_factor
from tests.support.waiting import PATIENCE_S

SPEC = {"device": "cpu", "gpu": "none", "ranks_per_node": 2, "nodes": 2}
REQUEST = {"spec": SPEC, "part_s": PATIENCE_S}
TURNS = 8  # of a measurement in which noise can only add
LIST_PACKAGES = """
import sys
before = set(sys.modules)
import pytest_clustersmoke.node.node_screen
own = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(own - sys.stdlib_module_names))
"""
# Of the standard library, what takes long to import.
SLOW_MODULES = (
    "asyncio",
    "datetime",
    "lzma",
    "random",
    "shutil",
    "tempfile",
    "traceback",
    "urllib.request",
)


def run_screen(run: Path, node: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest_clustersmoke.node.node_screen", str(run), node]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_screen_of_a_node_imports_the_standard_library_alone() -> None:
    words = [sys.executable, "-c", LIST_PACKAGES]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.split() == ["pytest_clustersmoke"]


def test_screen_of_a_node_imports_no_module_that_takes_long() -> None:
    """A node gives it a tenth of a second of CPU."""
    program = "import sys, pytest_clustersmoke.node.node_screen; print(*sys.modules)"
    words = [sys.executable, "-S", "-c", program]
    folder = Path(__file__).parents[2]
    shown = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert {*shown.split()}.isdisjoint(SLOW_MODULES)


def test_node_writes_its_answer_with_facts_and_what_it_took(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    files = ScreenFiles(tmp_path)
    files.create(REQUEST)
    ended = run_screen(tmp_path, "n1")
    assert (ended.returncode, ended.stderr) == (0, "")
    answer = files.read_answer("n1")
    assert answer is not None and answer.facts["node"] == "n1" and not answer.cut
    assert {"interfaces", "packages", "tmp", "gpus", "variables"} <= answer.facts.keys()
    assert answer.cpu_s is not None and 0 < answer.cpu_s < cpu_factor()
    assert [path.name for path in files.answer("n1").parent.iterdir()] == ["n1.json"]


def test_directory_that_others_can_open_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ScreenFiles(tmp_path).create(REQUEST)
    tmp_path.chmod(0o755)
    ended = run_screen(tmp_path, "n1")
    assert ended.returncode == 1 and "clustersmoke refuses to load" in ended.stderr
    assert ScreenFiles(tmp_path).read_answer("n1") is None


def test_part_that_hangs_or_fails_costs_no_other_its_answer() -> None:
    def fail() -> dict[str, Any]:
        raise OSError("Input/output error")

    def hang() -> dict[str, Any]:
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left_s <= 60
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # the limit, as if its time had passed
        threading.Event().wait(60)
        return {}

    parts = {"gpus": hang, "directories": fail, "kernel": lambda: {"kernel": "6.1"}}
    answer = screen_node("n1", SPEC, 60, parts)
    assert answer.cut["gpus"] == "no answer within 60 s"
    assert "Input/output error" in answer.cut["directories"]
    assert answer.facts["kernel"] == "6.1"


def test_what_rules_a_node_out_is_in_its_own_answer() -> None:
    facts = {"tmp": {"path": "/tmp", "error": "Read-only file system", "instead": None}}
    answer = screen_node("n1", SPEC, 60, {"directories": lambda: facts})
    assert "Read-only file system" in answer.found["system"]


def test_core_is_timed_only_where_the_job_has_all_of_the_node() -> None:
    whole = screen_node("n1", SPEC, 60, {"kernel": lambda: {"cpus_allowed": 8, "cpus_online": 8}})
    part = screen_node("n1", SPEC, 60, {"kernel": lambda: {"cpus_allowed": 2, "cpus_online": 8}})
    assert whole.work_s and part.work_s is None


def test_repeated_work_takes_as_much_more_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is the least of some turns: other work on the core can only add to a time."""
    once, usual_s, slow_s = core_speed.do_work, [], []
    for _ in range(TURNS):
        monkeypatch.setattr(core_speed, "do_work", once)
        usual_s.append(core_speed.measure_work())
        monkeypatch.setattr(core_speed, "do_work", lambda: [once() for _ in range(5)])
        slow_s.append(core_speed.measure_work())
        if min(slow_s) > 2.5 * min(usual_s):
            return
    pytest.fail(f"{min(slow_s)} s in place of {min(usual_s)} s")


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"node": "n2", "facts": {"a": 1}}', '{"node": "n1", "facts": []}'],
)
def test_answer_that_is_not_of_this_node_is_none(tmp_path: Path, content: str) -> None:
    files = ScreenFiles(tmp_path)
    files.create({})
    files.answer("n1").write_text(content)
    assert files.read_answer("n1") is None


def test_values_of_the_wrong_type_are_missing() -> None:
    value = json.loads('{"node": "n1", "facts": {"x": 1}, "cut": {"a": 3}, "work_s": "soon"}')
    answer = parse_answer("n1", value)
    assert answer is not None and answer.cut == {} and answer.work_s is None
