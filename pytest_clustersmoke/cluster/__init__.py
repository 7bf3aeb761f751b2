"""`cluster.yaml` -> checked, frozen profiles.

`load` reads the file and checks every profile in it; `ClusterFile.profile` fills in the variables
of one profile and checks it again. All problems are raised at once, as `UsageProblems`.

`source` reads YAML with lines, `expansion` fills in variables, `schema` has the keys, their
types and the rules between them (`waivers` for `known`, `sbatch` for `slurm`, `fields` for the
types), `problems` turns pydantic's errors into messages, `json_schema` is for editors.
"""

from pytest_clustersmoke.cluster.file import ClusterFile, find_config, load
from pytest_clustersmoke.cluster.schema import (
    CRITERIA_KINDS,
    STAGE_LIMITS_S,
    EnvBlock,
    EnvSettings,
    Expectation,
    Hardware,
    Limits,
    PhaseSettings,
    Profile,
    Reference,
)
from pytest_clustersmoke.cluster.waivers import Known

__all__ = [
    "CRITERIA_KINDS",
    "STAGE_LIMITS_S",
    "ClusterFile",
    "EnvBlock",
    "EnvSettings",
    "Expectation",
    "Hardware",
    "Known",
    "Limits",
    "PhaseSettings",
    "Profile",
    "Reference",
    "find_config",
    "load",
]
