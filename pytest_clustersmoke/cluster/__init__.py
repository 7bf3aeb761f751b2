"""`cluster.yaml` -> checked, frozen profiles.

`load` reads the file and checks every profile in it; `ClusterFile.profile` fills in one profile's
variables and checks it again. Whatever is wrong is raised at once, as `UsageProblems`.

`source` reads YAML with lines, `expansion` fills in variables, `schema` has the keys, their kinds
and what they mean together (`waivers` those of `known`, `sbatch` those of `slurm`, `fields` the
kinds that are ours), `problems` the words for errors, `json_schema` the schema for editors.
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
