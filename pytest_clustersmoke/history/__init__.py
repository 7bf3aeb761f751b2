"""Past runs, by cluster and hardware: what was measured, and what a run is beside them.

database.py   history.db: opened for reading or writing, or refused in words
schema.py     its tables, version by version
store.py      a run's record -> rows
query.py      rows -> runs of the past
past.py       a value beside those of the past: median and MAD
annotate.py   a record beside the past: `past`, `trend`, `changed`, `changes`
changes.py    what changed since a run, in words
check.py      the criterion on it

command.py    `clustersmoke history`; overview.py: what it shows; table.py: tables, sparklines
compare.py    two runs side by side; `clustersmoke compare` (compare_command.py)
propose.py    `clustersmoke references propose`
words.py      names and runs as a person types them
"""

from .annotate import annotate, past_of
from .database import HistoryUnusable
from .store import add

__all__ = ["HistoryUnusable", "add", "annotate", "past_of"]
