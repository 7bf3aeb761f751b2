"""Submits phases as jobs, watches and cancels them: the backends, and the one Slurm client.

backend.py        the interface of a backend, its submissions, and the job's spec
slurm_backend.py  one Slurm job of N nodes with one task each, through sbatch and srun
allocation_backend.py  one step of the user's own allocation; step_request.py: what it needs there
ssh_backend.py    hosts without a scheduler; ssh_client.py: the connection to one of them,
                  host_script.py: what runs there
local_backend.py  N virtual nodes on this machine, each in a session of its own
batch_script.py   what a node runs: the setup lines, the environment, and our Python
slurm_client.py   runs Slurm's commands, in their own sessions and without an outer job's variables
slurm_records.py  parses these commands' output about the cluster; slurm_jobs.py: about jobs
job_watch.py      whether a job is over; poller.py: when to ask about it; outcome.py: how it ended
"""
