"""The tables of history.db, version by version.

`PRAGMA user_version` is the version, `PRAGMA application_id` says that the file is ours. A shipped
version is never edited: each change is a new migration step, applied when the next run is stored.
Until then a file of an older version is read as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from sqlite3 import Connection
from typing import NamedTuple

from ...text import sanitize_line

APPLICATION_ID = 0x636C736D  # "clsm"
# Most text comes from jobs and has no limit of its own.
MAX_TEXT, MAX_SHAPE, MAX_NAMES = 500, 4000, 4096

_TABLES = (
    """CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    cluster TEXT NOT NULL,
    backend TEXT NOT NULL,
    begun REAL NOT NULL,           -- Unix seconds
    written REAL NOT NULL,
    verdict TEXT NOT NULL,
    sentence TEXT NOT NULL,
    selection TEXT NOT NULL,       -- what -m and -k left; empty: all
    interrupted INTEGER NOT NULL,
    partial TEXT NOT NULL,         -- why not all is known; empty: all is
    package_version TEXT NOT NULL,
    gpu TEXT NOT NULL,             -- what the profile says of a node, here and below
    device TEXT NOT NULL,
    gpus_per_node INTEGER NOT NULL,
    interconnect TEXT NOT NULL
)""",
    # What phase runs must share to be compared; '' for an unknown version.
    """CREATE TABLE setups (
    id INTEGER PRIMARY KEY,
    hardware TEXT NOT NULL,
    shape TEXT NOT NULL,
    driver TEXT NOT NULL,
    cuda TEXT NOT NULL,
    nccl TEXT NOT NULL,
    torch TEXT NOT NULL,
    deepspeed TEXT NOT NULL,
    UNIQUE (hardware, shape, driver, cuda, nccl, torch, deepspeed)
)""",
    # cluster and begun repeat those of the run: an index cannot span two tables.
    """CREATE TABLE phases (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    cluster TEXT NOT NULL,
    phase TEXT NOT NULL,
    begun REAL NOT NULL,
    setup INTEGER NOT NULL REFERENCES setups (id),
    good INTEGER NOT NULL,         -- later runs are judged against it
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    finding TEXT NOT NULL,         -- id of the first cause, where one was found
    job_id TEXT NOT NULL,
    world_size INTEGER NOT NULL,
    queue_s REAL,
    run_s REAL,
    passed INTEGER NOT NULL,       -- how many criteria, here and below
    failed INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    known INTEGER NOT NULL,
    transport TEXT NOT NULL,
    nodes TEXT NOT NULL,           -- JSON: names
    versions TEXT NOT NULL,        -- JSON: name -> version
    criteria TEXT NOT NULL,        -- JSON: name -> result
    UNIQUE (run, phase)
)""",
    # A non-finite value is stored as its name: nan, inf, -inf.
    """CREATE TABLE metrics (
    phase INTEGER NOT NULL REFERENCES phases (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value REAL NOT NULL,
    unit TEXT NOT NULL,
    higher_is_better INTEGER NOT NULL,
    PRIMARY KEY (phase, name)
) WITHOUT ROWID""",
)
# One index for each query that must be fast over years of runs.
_INDEXES = (
    "CREATE INDEX runs_by_time ON runs (cluster, begun)",
    "CREATE INDEX phases_by_time ON phases (cluster, phase, begun, good)",
    "CREATE INDEX phases_by_setup ON phases (cluster, phase, setup, good, begun)",
    "CREATE INDEX phases_of_good ON phases (cluster, phase, good, begun)",
)
# A level that a person accepted: earlier runs are not compared with later ones.
_ACCEPTED_LEVELS = (
    """CREATE TABLE accepted_levels (
    id INTEGER PRIMARY KEY,
    cluster TEXT NOT NULL,
    phase TEXT NOT NULL,
    metric TEXT NOT NULL,          -- empty: all metrics of the phase
    accepted REAL NOT NULL,        -- Unix seconds
    person TEXT NOT NULL,
    reason TEXT NOT NULL
)""",
)
# Each GPU's own step: a night of 512 GPUs and eight phases takes 100 KB.
_GPUS = (
    """CREATE TABLE gpus (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE      -- its UUID; on CPU host/node:local rank
)""",
    """CREATE TABLE gpu_steps (
    phase INTEGER NOT NULL REFERENCES phases (id) ON DELETE CASCADE,
    gpu INTEGER NOT NULL REFERENCES gpus (id),
    own_step_s REAL NOT NULL,      -- on CPU the CPU time
    PRIMARY KEY (phase, gpu)
) WITHOUT ROWID""",
)
# What each node did, and what its devices reached. `seen` repeats when the run began: an index
# cannot span two tables.
_NODES = (
    """CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    cluster TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (cluster, name)
)""",
    # A node with the parts that it had; another row after each reboot and each change of parts.
    """CREATE TABLE boots (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    boot_id TEXT NOT NULL,         -- empty: unknown
    parts TEXT NOT NULL,           -- JSON: kind -> parts
    UNIQUE (node, boot_id, parts)
)""",
    """CREATE TABLE node_observations (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    source TEXT NOT NULL,          -- a phase, or `screen`
    node INTEGER NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    seen REAL NOT NULL,            -- Unix seconds
    boot INTEGER NOT NULL REFERENCES boots (id) ON DELETE CASCADE,
    state TEXT NOT NULL,           -- good, bad or unknown
    definite INTEGER NOT NULL,     -- needs no second piece of evidence
    reason TEXT NOT NULL,          -- id of the finding or check, a colon, a line of text
    cleared TEXT NOT NULL,         -- ids of findings that a screen ruled out, with spaces between
    PRIMARY KEY (run, source, node)
) WITHOUT ROWID""",
    "CREATE INDEX observations_by_node ON node_observations (node, seen)",
    "CREATE INDEX observations_by_boot ON node_observations (boot)",
    # node is empty for a device with a name of its own, whose past goes with it to another node.
    """CREATE TABLE devices (
    id INTEGER PRIMARY KEY,
    cluster TEXT NOT NULL,
    name TEXT NOT NULL,            -- UUID or serial number; empty: the node itself
    node TEXT NOT NULL,
    UNIQUE (cluster, name, node)
)""",
    """CREATE TABLE figures (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    unit TEXT NOT NULL,
    higher_is_better INTEGER NOT NULL,
    UNIQUE (name, unit, higher_is_better)
)""",
    """CREATE TABLE device_figures (
    device INTEGER NOT NULL REFERENCES devices (id) ON DELETE CASCADE,
    figure INTEGER NOT NULL REFERENCES figures (id),
    seen REAL NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    node INTEGER NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    value REAL NOT NULL,
    PRIMARY KEY (device, figure, seen, run, node)
) WITHOUT ROWID""",
    "CREATE INDEX device_figures_by_run ON device_figures (run)",
    "CREATE INDEX device_figures_by_node ON device_figures (node, seen)",
)

# The reference that a metric was judged by, with its bounds; NULL if none was of the phase's sizes.
_REFERENCES = (
    "ALTER TABLE metrics ADD COLUMN reference REAL",
    "ALTER TABLE metrics ADD COLUMN low REAL",
    "ALTER TABLE metrics ADD COLUMN high REAL",
)
# The phase that measured a figure: only good ones of the same setup are compared with.
_FIGURES_BY_PHASE = (
    "ALTER TABLE device_figures ADD COLUMN phase INTEGER REFERENCES phases (id) ON DELETE CASCADE",
    "CREATE INDEX device_figures_by_phase ON device_figures (phase)",
)
# `limits.publish` of a run's profile, NULL of earlier runs; how many jobs a phase took.
_PUBLISH = ("ALTER TABLE runs ADD COLUMN publish TEXT",)
_ATTEMPTS = ("ALTER TABLE phases ADD COLUMN attempts INTEGER NOT NULL DEFAULT 1",)

# The curves of collectives, which nothing judges.
_CURVES = (
    """CREATE TABLE curve_points (
    phase INTEGER NOT NULL REFERENCES phases (id) ON DELETE CASCADE,
    collective TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,   -- that was asked for
    busbw_gb_per_s REAL NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (phase, collective, size_bytes)
) WITHOUT ROWID""",
)

# The offset of the local time where a run began, in seconds east of UTC; NULL: unknown.
_OFFSET = ("ALTER TABLE runs ADD COLUMN utc_offset_s INTEGER",)

# Of a GPU or CPU, of a network card its rate; empty: unknown. Only those of one are peers.
_MODELS = ("ALTER TABLE devices ADD COLUMN model TEXT NOT NULL DEFAULT ''",)

# The required kinds of criteria that a phase did not measure, with commas between.
_UNMEASURED = ("ALTER TABLE phases ADD COLUMN unmeasured TEXT NOT NULL DEFAULT ''",)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    *(_TABLES, _INDEXES, _ACCEPTED_LEVELS, _GPUS, _NODES),
    (*_REFERENCES, *_FIGURES_BY_PHASE),
    _CURVES,
    (*_PUBLISH, *_ATTEMPTS),
    _OFFSET,
    _MODELS,
    _UNMEASURED,
)
WITH_ACCEPTED_LEVELS, WITH_GPUS, WITH_NODES, WITH_REFERENCES = 3, 4, 5, 6
WITH_FIGURES_BY_PHASE = WITH_REFERENCES
WITH_CURVES = 7
WITH_PUBLISH = WITH_ATTEMPTS = 8
WITH_OFFSET = 9
WITH_MODELS = 10
WITH_UNMEASURED = 11
VERSION = len(MIGRATIONS)


def read_version(connection: Connection) -> int | None:
    """The version of our database, 0 for an empty one; None for a foreign database.

    Raises sqlite3.DatabaseError if the file is not a database.
    """
    # A single statement sees a single state. With several, a database that another process is just
    # creating could look foreign: a version without our id.
    tables, application, version = connection.execute(
        "SELECT (SELECT count(*) FROM sqlite_master), "
        "(SELECT application_id FROM pragma_application_id), "
        "(SELECT user_version FROM pragma_user_version)"
    ).fetchone()
    if application == APPLICATION_ID:
        return int(version)
    return None if application or version or tables else 0


def migrate(connection: Connection) -> None:
    """Migrate our database to the current version, inside the open transaction."""
    version = read_version(connection) or 0
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        for statement in step:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    if version == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


class Setup(NamedTuple):
    """The properties that phase runs must share to be compared; unknown versions are empty."""

    hardware: str
    shape: str
    driver: str
    cuda: str
    nccl: str
    torch: str
    deepspeed: str

    @classmethod
    def of(cls, hardware: str, shape: str, versions: Mapping[str, str]) -> Setup:
        """The setup in its stored form, in which equal setups compare equal."""
        compared = (shorten_line(versions.get(name, "")) for name in cls._fields[2:])
        return cls(shorten_line(hardware), shorten_line(shape, MAX_SHAPE), *compared)


def shorten_line(value: object, longest: int = MAX_TEXT) -> str:
    """One sanitized line. A digest keeps different lines different when they are cut."""
    line = sanitize_line(str(value))
    if len(line) <= longest:
        return line
    digest = hashlib.sha256(line.encode()).hexdigest()[:16]
    return f"{line[: longest - 20]}... {digest}"
