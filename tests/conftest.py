"""What all tests share: a home of their own, no process left behind, a small suite."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

# Generated examples are the same in each run, and none fails because the machine is busy: without
# this, one that takes more than 200 ms does.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")

pytest.register_assert_rewrite("tests.support")

from tests.support.harness import Suite, outer_variables  # noqa: E402  (after its asserts are known to pytest)
from tests.support.labs import visible_folder  # noqa: E402
from tests.support.leftovers import none_left  # noqa: E402

# `measures` prints the table of staged faults; it must be loaded in the controller, too.
pytest_plugins = ["pytester", "tests.faults.measures"]


# The ladder takes longest; the others would be the last files, and take 20 s.
FIRST = {"test_ladder.py", "test_nightly.py", "test_plugin.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files do not come last: they would keep one worker busy while the others have nothing
    left to do."""
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without a search for garbage: what is imported and collected stays until the end, and
    would be looked through again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give this session its own HOME, XDG directories and temporary directories of inner pytests,
    which would otherwise delete those of earlier runs as they end: that may take a minute."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CLUSTERSMOKE_SHARED_DIR", raising=False)
        patch.setenv("HOME", str(home))
        for name in ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "STATE_HOME", "RUNTIME_DIR"):
            place = home / name.lower()
            place.mkdir(mode=0o700)
            patch.setenv(f"XDG_{name}", str(place))
        inner = home / "tmp"
        inner.mkdir()
        patch.setenv("PYTEST_DEBUG_TEMPROOT", str(inner))
        yield home


@pytest.fixture
def leftovers() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """A variable to set in what a test starts, and a function that lists the processes that still
    run with it. The test fails if one is left at its end."""
    with none_left() as marked:
        yield marked


@pytest.fixture
def suite(
    pytester: pytest.Pytester,
    leftovers: tuple[str, Callable[[], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> Suite:
    """An empty suite with the cluster `one`; no process of it may be left when the test ends."""
    for name in outer_variables():
        monkeypatch.delenv(name)
    return Suite(pytester.path, leftovers[0], pytester=pytester)


@pytest.fixture
def lab_dir() -> Iterator[Path]:
    with visible_folder() as folder:
        yield folder
