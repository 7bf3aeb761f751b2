"""Where xdist's controller waits, the run is shown; an event finds the terminal as it was."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.session.live import live_view


class Shown:
    """Notes when it looks around, and when it erases."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(queue=queue.Queue())
        self.did: list[str] = []
        self.put = self.session.queue.put  # as xdist's workers got it before
        assert live_view.show_in_queue(self.session, self.waiting, self.tick)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.did.append("erase")

    def tick(self) -> None:
        self.did.append("tick")
        if self.did.count("tick") == 2:
            self.put("event")


def test_it_looks_around_until_an_event_comes() -> None:
    """The view is erased before the event is handed out."""
    shown = Shown()
    assert shown.session.queue.get(timeout=60.0) == "event"
    assert shown.did == ["tick", "tick", "erase"]


def test_the_time_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist looks for dead workers when queue.Empty is raised; then, too, nothing is left."""
    shown = Shown()
    monkeypatch.setattr(live_view, "TICK_S", 0.01)
    shown.did.append("tick")
    shown.did.append("tick")
    with pytest.raises(queue.Empty):
        shown.session.queue.get(timeout=0.05)
    assert shown.did[-1] == "erase"


def test_all_else_is_the_queues_own() -> None:
    """What else xdist does with it reaches the queue that its workers write to."""
    shown = Shown()
    shown.session.queue.put("mine")
    assert shown.session.queue.qsize() == 1
    assert shown.session.queue.get(block=False) == "mine"
    with pytest.raises(queue.Empty):
        shown.session.queue.get(block=False)


def test_a_session_without_a_queue_is_left_alone() -> None:
    """Another xdist may wait elsewhere: that is told by the answer, not by an exception."""
    assert not live_view.show_in_queue(None, Shown().waiting, Shown().tick)
