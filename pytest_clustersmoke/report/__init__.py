"""One record of a run, and what is rendered from it.

record.py      the record: run, verdict, phases (report.json)
properties.py  the JUnit properties of a phase's cases
terminal.py    the table and the verdict at the end of the terminal's output
publish.py     reports/<run_id>/: the record, the scripts, the evidence worth keeping
"""

from .publish import publish
from .record import make_record

__all__ = ["make_record", "publish"]
