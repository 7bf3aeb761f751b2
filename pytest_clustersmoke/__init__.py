"""Is this GPU cluster fit to train on today, and if not: which node, link or setting is at fault?

How data flows through a run:

    options + cluster.yaml -> Phase -> preflight -> job -> [node -> [rank]] -> evidence
                                                                                  |
      junit.xml, report.json, index.html, history <- report <- verdict <- criteria, findings

The entries, in groups that blank lines separate. An entry imports only from the groups below its
own, so text.py is open to all, and nothing imports plugin.py:

    plugin.py    pytest's hooks, options, markers and the `phase` fixture; it parses and delegates
    cli/         the `clustersmoke` command: a module NAME_command.py for each subcommand, and what
                 these print and ask

    session/     one pytest session: items, selected phases, the watch thread, xdist, progress while
                 jobs run

    report/      builds the record of a run, with its verdict, and every view of it: page, JUnit,
                 terminal, metrics
    faults/      faults that can be staged on purpose, and the gate that must find each. What
                 faults/staged/ holds runs in a rank, which loads it by the name that the node gives

    criteria/    what must hold: base classes, references, transports, slow ranks, the past
    diagnose/    turns evidence of a failure into findings; failure signatures and their search

    preflight/   problems that the login node can find before anything is submitted
    lab/         a real Slurm on this machine

    jobs/        submit, watch and cancel: here, by Slurm, in an allocation, over ssh; the one
                 Slurm client

    rank/        in the rank: process group, device, timing, gradient and checkpoint proofs. Only
                 rank/ and faults/staged/ import torch, and only inside functions
    node/        on the node: facts, checks before the ranks start, rendezvous, the launcher,
                 supervision of the ranks

    evidence/    the run directory: file names, events, facts, NCCL's logs, findings; the types of a
                 run's record, and the history of runs

    config/      cluster.yaml, the marker and the command line become a frozen Phase

    text.py      what messages are made of: problems, near matches, sanitized text, lists

tests/test_layout.py checks the entries, their order and the direction of imports. Rank programs
import `pytest_clustersmoke.rank`, test files `pytest_clustersmoke.criteria`; everything else is
internal.
"""

__version__ = "0.1.0"
