"""Is this GPU cluster fit to train on today, and if not: which node, link or setting is at fault?

The way of the data, and where each step lives:

    options + cluster.yaml -> phases -> preflight -> submit -> [node: launch -> [rank program]]
                                                                                      |
  junit.xml, report.json, index.html, history <- report <- criteria <- result <- evidence

    plugin.py       pytest's hooks, options, markers and the `phase` fixture; parses and delegates
    items.py        what pytest collects: phase classes, their jobs, their criteria
    register.py     which suite a session gets
    collected.py    the phases that this cluster runs, and all that is wrong with them
    suite.py        the suite of one pytest session; distributed.py: the same under pytest-xdist
    cluster/        cluster.yaml -> checked, frozen profile
    marker.py       what a phase's marker says
    phase.py        marker + profile -> frozen phase
    environment/    the check of NCCL's, torch's and gloo's variables
    dryrun.py       all that would be submitted, and where each value came from
    preflight/      what can be known to fail before anything is submitted
    session.py      one run: submits all, watches, tells results, cancels what is left
    live/           what is seen of a run while pytest waits: a view on a terminal, or lines
    submit/         submitit: Slurm, and virtual nodes on this machine
    watch.py        when to ask the scheduler; what all witnesses say of a job
    scheduler_record.py  what the scheduler said of a job; hostlist.py: Slurm's lists of nodes
    launch/         on the node: environment, facts, torchrun, the watch over its ranks
    rank/           in the rank: process group, device, timing, gradient and checkpoint proofs.
                    The only package that touches torch, and only inside functions
    telemetry.py    events as JSON lines; the metrics and their units
    result.py       what a finished phase left behind; evidence.py: its nodes and ranks;
                    phase_view.py: the same for criteria, with its transports and its past
    criteria.py     criteria that hold of any phase that trains; gpu_model.py: is it that model?
    stragglers.py   ranks that fall behind the others; finite.py: whose NaN it was
    outcome.py      how a job ended, from all witnesses; timing.py: how long it waited and ran
    transports.py   which NCCL transports the ranks used; transport_checks.py: as expected or not
    nccl/           NCCL's logs -> who talked to whom over what; `clustersmoke transports`
    bandwidth.py    collectives, as the ranks measured them, judged; pairs.py: pairs of nodes
    references.py   bounds on metrics
    diagnose/       evidence of a failure -> findings (findings.py)
    signatures/     signatures.yaml and the search for them; `clustersmoke diagnose`
                    (diagnose_command.py)
    logs/           what the subcommands that read logs share: inputs, progress, output
    faults/         faults that can be staged on purpose, by name
    prove/          --cluster-prove: each fault staged on the cluster; does its gate stop it?
                    (rank/staged/: what a rank does to stage one)
    tally.py        what pytest's reports say, counted; selection.py: what a run was asked for
    acknowledgements.py  known failures: what in cluster.yaml answers for one, and until when
    verdict.py      FIT, UNFIT or INCONCLUSIVE, and the exit status
    report/         the record of a run (report.json), and all that is rendered from it
    identity.py     what a phase ran on; history/: past runs, and the comparison with them
    rundir.py       every file name of a run
    locks.py        who has a cluster, and whether the controller of a run still lives
    process_start.py  when a process started: whose pid it is
    interrupts.py   SIGINT, SIGTERM and SIGHUP cancel at once
    init/           `clustersmoke init`: cluster.yaml and the suite for a new cluster
    lab/, cli.py    a real Slurm on this machine; the `clustersmoke` command (subcommand.py)
    errors.py       what a user can get wrong, told in one shape
    clean.py        what a job wrote, made harmless before it is shown

Rank programs import `pytest_clustersmoke.rank`; everything else is the plugin's own.
"""

__version__ = "0.1.0"
