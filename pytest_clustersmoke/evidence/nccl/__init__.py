"""NCCL's own log (NCCL_DEBUG=INFO, NCCL 2.3 to 2.30) -> who talked to whom, over what.

    grammar.py        the words of NCCL's lines, by version
    reader.py         a stream of any size -> the few lines that matter
    statements.py     those beside the edges: communicators, networks, devices, warnings
    observations.py   what was seen, kept small
    line_cache.py     lines that were seen before, but for their channel
    communicators.py  which communicators there are; attribution.py: whose an edge is
    log_assembly.py   what was seen -> a Log
    nccl_log.py       the Log: communicators, edges, warnings

and for `clustersmoke transports`, by the log alone:

    placement.py           which node each rank ran on
    links.py               edges merged, each inside a node or between nodes
    job_transports.py      all of a job; transport_remarks.py: what is surprising in it
    transport_json.py      JSON; transport_text.py, matrix.py: text
    transports_command.py  the subcommand

What a log does not tell is None or empty. No edge is made up: a line that was cut or torn counts
as torn, and one that may be another communicator's names all that it may be.
"""

from .log_reader import NodeLogs, Reader, Unreadable, read_nodes
from .nccl_log import (
    CollNet,
    Communicator,
    Edge,
    Log,
    Member,
    NcclProcess,
    NcclTransport,
    Warn,
    Where,
    transport,
)

__all__ = [
    "CollNet",
    "Communicator",
    "Edge",
    "Log",
    "Member",
    "NcclProcess",
    "NcclTransport",
    "NodeLogs",
    "Reader",
    "Unreadable",
    "Warn",
    "Where",
    "read_nodes",
    "transport",
]
