"""The progress of reading logs."""

from __future__ import annotations

import io

from pytest_clustersmoke.cli.log_streams import ReadProgress


def test_progress_is_shown_on_a_terminal_only() -> None:
    """Once a second, with the share that was read; erased at the end."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        with ReadProgress(out, 2**31) as shown:
            shown.watch(io.BytesIO(b"x" * 10)).read(10)
            assert out.getvalue() == ""
            shown._next = 0.0
            shown.add(2**30 - 10)
    assert terminal.getvalue() == "\r\x1b[Kread 1.00 of 2.00 GiB (50%)\r\x1b[K"
    assert pipe.getvalue() == ""
