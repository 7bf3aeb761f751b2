"""On the node: facts, checks, rendezvous, the launcher, supervision of the ranks, stack dumps.

node_job.py       `run_node`, which submitit ships: one call per node, plain data in and out
node_facts.py     host, hardware, versions and limits, without importing torch
gpu_facts.py      its GPUs, as nvidia-smi reports them
checks/           which facts of nodes rule out a run there
abort_flag.py     the flag that ends a phase on every node
rendezvous.py     the nodes wait for each other; node 0 publishes an address and a port
reachability.py   every node connects to that port before torchrun does
torchrun.py       torchrun's command line and the environment of its ranks
supervisor.py     torchrun from start to end
rank_progress.py  progress of each rank; detects ranks that died, failed or stalled
node_dumps.py     stacks and flight recorders of the ranks before they are ended
suspension.py     how long the job was stopped, for example by the scheduler
process_tree.py   process trees, found and ended by pid and start time
"""
