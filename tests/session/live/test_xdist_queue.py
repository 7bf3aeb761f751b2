"""xdist's controller shows the run while it waits, and erases the view before an event."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.session.live import pytest_terminal


class Shown:
    """Records each tick and each erasure."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(queue=queue.Queue())
        self.calls: list[str] = []
        self.put = self.session.queue.put  # the method that xdist's workers already have
        assert pytest_terminal.show_in_queue(self.session, self.waiting, self.tick)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.calls.append("erase")

    def tick(self) -> None:
        self.calls.append("tick")
        if self.calls.count("tick") == 2:
            self.put("event")


def test_run_is_shown_until_an_event_comes() -> None:
    """The view is erased before the event is returned."""
    shown = Shown()
    assert shown.session.queue.get(timeout=60.0) == "event"
    assert shown.calls == ["tick", "tick", "erase"]


def test_get_keeps_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist checks for dead workers on queue.Empty; the view is erased then, too."""
    shown = Shown()
    monkeypatch.setattr(pytest_terminal, "TICK_S", 0.01)
    shown.calls.append("tick")
    shown.calls.append("tick")
    with pytest.raises(queue.Empty):
        shown.session.queue.get(timeout=0.05)
    assert shown.calls[-1] == "erase"


def test_other_methods_are_those_of_the_queue() -> None:
    """They reach the queue that xdist's workers write to."""
    shown = Shown()
    shown.session.queue.put("mine")
    assert shown.session.queue.qsize() == 1
    assert shown.session.queue.get(block=False) == "mine"
    with pytest.raises(queue.Empty):
        shown.session.queue.get(block=False)


def test_session_without_a_queue_is_left_alone() -> None:
    """Another version of xdist may have none: the result is False, not an exception."""
    assert not pytest_terminal.show_in_queue(None, Shown().waiting, Shown().tick)
