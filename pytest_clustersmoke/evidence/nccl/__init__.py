"""Reads NCCL's own log (NCCL_DEBUG=INFO, NCCL 2.3 to 2.30): which ranks are connected, over what.

    grammar.py        the wording of NCCL's lines, by version
    log_reader.py     picks the few lines that matter from a stream of any size
    statements.py     lines other than edges: communicators, networks, devices, warnings
    observations.py   everything seen so far, kept small
    line_cache.py     recognises lines that differ from earlier ones only in their channel
    communicators.py  which communicators exist; attribution.py: which one an edge belongs to
    log_assembly.py   assembles the observations into a Log
    nccl_log.py       the Log: communicators, edges, warnings

`clustersmoke transports` uses, in cli/, from the log alone:

    placement.py           which node each rank ran on
    links.py               merges edges, inside a node or between nodes
    job_transports.py      everything about a job; transport_remarks.py: what is surprising in it
    transport_json.py      JSON; transport_text.py, matrix.py: text
    transports_command.py  the subcommand

A value that the log does not have is None or empty. No edge is guessed: a cut or torn line counts
as torn, and an edge that may belong to several communicators lists them all.
"""
