"""The tables of history.db, version by version.

`PRAGMA user_version` is the version, `PRAGMA application_id` says that the file is ours. A version
that has shipped is never edited: what changes is a further step, taken when the next run is stored.
Until then a file of an older version is read as it is.
"""

from __future__ import annotations

from sqlite3 import Connection

APPLICATION_ID = 0x636C736D  # "clsm"

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
    # What makes phase runs comparable; '' where a version is not known.
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
    # cluster and begun are those of the run: an index cannot reach over two tables.
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
    # A value that is not finite is its name: nan, inf, -inf.
    """CREATE TABLE metrics (
    phase INTEGER NOT NULL REFERENCES phases (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value REAL NOT NULL,
    unit TEXT NOT NULL,
    higher_is_better INTEGER NOT NULL,
    PRIMARY KEY (phase, name)
) WITHOUT ROWID""",
)
# Each question that is asked of years of runs has its own.
_INDEXES = (
    "CREATE INDEX runs_by_time ON runs (cluster, begun)",
    "CREATE INDEX phases_by_time ON phases (cluster, phase, begun, good)",
    "CREATE INDEX phases_by_setup ON phases (cluster, phase, setup, good, begun)",
    "CREATE INDEX phases_of_good ON phases (cluster, phase, good, begun)",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_TABLES, _INDEXES)
VERSION = len(MIGRATIONS)


def version_of(connection: Connection) -> int | None:
    """The version of a database of ours, 0 for an empty one; None for somebody else's.

    Raises sqlite3.DatabaseError where the file is no database.
    """
    # One statement sees one state: where somebody makes the database meanwhile, a version without
    # our id would be somebody else's.
    tables, application, version = connection.execute(
        "SELECT (SELECT count(*) FROM sqlite_master), "
        "(SELECT application_id FROM pragma_application_id), "
        "(SELECT user_version FROM pragma_user_version)"
    ).fetchone()
    if application == APPLICATION_ID:
        return int(version)
    return None if application or version or tables else 0


def migrate(connection: Connection) -> None:
    """Bring a database of ours to today's version, inside the transaction that is open."""
    version = version_of(connection) or 0
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        for statement in step:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    if version == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
