"""`--cluster-prove`: does every gate stop the fault it is there for, on this cluster, today?

items.py    a gate as pytest collects it: a fault, and the criterion that must go red
choose.py   which phase a fault is staged in, made small; or why this cluster cannot have it
judge.py    what came of a fault, against what must
suite.py    the suite of a session that proves: jobs, criteria, gates
"""

from .suite import ProveSuite

__all__ = ["ProveSuite"]
