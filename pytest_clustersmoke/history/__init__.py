"""Past runs, by cluster and hardware: what was measured, and what a run is beside them.

history_database.py   history.db: opened for reading or writing, or refused in words
history_schema.py     its tables, version by version
history_store.py      a run's record -> rows
history_query.py      rows -> runs of the past
outlier_judge.py      a value beside those of the past: median and MAD
past_annotation.py    a record beside the past: `past`, `trend`, `changed`, `changes`
setup_changes.py      what changed since a run, in words
past_criterion.py     the criterion on it

history_command.py    `clustersmoke history`; history_views.py: what it shows
compare_command.py    `clustersmoke compare`; run_comparison.py: two runs side by side
propose_command.py    `clustersmoke references propose`
history_arguments.py  names and runs as a person types them
history_tables.py     tables, sparklines and times
"""

from .history_database import HistoryUnusable
from .history_store import add
from .past_annotation import annotate, past_of

__all__ = ["HistoryUnusable", "add", "annotate", "past_of"]
