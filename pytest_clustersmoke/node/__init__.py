"""On the node: facts, checks, rendezvous, the launcher, supervision of the ranks, stack dumps.

job_entry.py           checks whose files a job loads, and lets submitit load the call of run_node
node_job.py            `run_node`, which submitit ships: one call per node, plain data in and out
node_screen.py         what `--cluster-screen` runs there, alone and without a rendezvous
core_speed.py          a fixed piece of work, and the CPU time that it takes
node_facts.py          host, hardware, versions and limits, without importing torch
installed_packages.py  Python, and the packages that ranks use
network_facts.py       its interfaces and RDMA ports
gpu_facts.py           its GPUs, as nvidia-smi reports them
checks/                which facts of nodes rule out a run there
abort_flag.py          the flag that ends a phase on every node
rendezvous.py          the nodes wait for each other; node 0 publishes an address and a port
reachability.py        every node connects to that port before the ranks do
launchers.py           the launchers' command lines, and the files that they read
launch_environment.py  the environment of the ranks
rank_starter.py        a process that becomes, or runs, one rank
agent.py               what started the ranks: the launcher's processes, or a step's tasks
supervisor.py          the launcher from start to end
rank_progress.py       progress of each rank; detects ranks that died, failed or stalled
node_dumps.py          stacks and flight recorders of the ranks before they are ended
suspension.py          how long the job was stopped, for example by the scheduler
process_tree.py        process trees, found and ended by pid and start time
"""
