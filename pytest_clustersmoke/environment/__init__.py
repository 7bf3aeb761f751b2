"""The check of the variables that a phase's nodes will see: NCCL_*, TORCH_NCCL_*, GLOO_* and
TORCH_GLOO_*.

names.py           whose a variable is, by lists of what exists
values.py          what cannot work about a value
contradictions.py  variables that leave none of the transports that are expected
remarks.py         what is said before the job: dry run, start of a run, usage errors
interfaces.py      pinned interfaces against those that the nodes have
after.py           what is said once the nodes have told which variables they saw

Nothing here needs more than the standard library: the launcher uses it on the nodes.
"""

from .after import seen
from .interfaces import Unmatched, unmatched_interfaces
from .names import of_families
from .remarks import Remark, grouped, lines, planned, problems

__all__ = [
    "Remark",
    "Unmatched",
    "grouped",
    "lines",
    "of_families",
    "planned",
    "problems",
    "seen",
    "unmatched_interfaces",
]
