"""`cluster.yaml` -> checked, frozen profiles.

`load` reads the file and checks every profile in it; `ClusterFile.profile` fills in one profile's
variables and checks it again. Whatever is wrong is raised at once, as `UsageProblems`.

`source` reads YAML with lines, `schema` has the keys and their kinds, `fields` the kinds that are
ours, `checks` what keys mean together, `acknowledged` the same of `known`, `sbatch` the options of
sbatch, `expand` variables, `messages` the words for errors, `json_schema` the schema for editors.
"""

from pytest_clustersmoke.cluster.file import ClusterFile, find_config, load
from pytest_clustersmoke.cluster.schema import (
    CRITERIA_KINDS,
    STAGE_LIMITS_S,
    EnvBlock,
    EnvSettings,
    Expectation,
    Hardware,
    Known,
    Limits,
    PhaseSettings,
    Profile,
    Reference,
)

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
