"""Failures that guides and field notes on multi-GPU training name."""

from __future__ import annotations

from tests.diagnose.logs import WATCHDOG

# Document and section; the text as quoted there or, if it quotes none, as the software prints it;
# the signature; words of the document's fix.
NAMED = [
    (
        "Gilbreth guide, 6.3",
        "DDP expects same model across all ranks, but Rank 0 has 20 params, while rank 1 has "
        "inconsistent 0 params",
        "ddp_model_unread",
        ("NCCL_IB_DISABLE=1", "NCCL_P2P_LEVEL=NVL"),
    ),
    (
        "Gilbreth guide, 6.10",
        "RuntimeError: Error(s) in loading state_dict for Net:\n"
        '\tMissing key(s) in state_dict: "0.weight". \n'
        '\tUnexpected key(s) in state_dict: "module.0.weight". ',
        "state_dict_mismatch",
        ("model.module.state_dict()",),
    ),
    (
        "Gilbreth guide, 7.5 issue 1",
        "AssertionError: zero stage 1 requires an optimizer",
        "ds_zero_requires_optimizer",
        ("`optimizer` section",),
    ),
    (
        "Gilbreth guide, 7.5 issue 2",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
        "dtype_mismatch_matmul",
        ("dtype=torch.bfloat16",),
    ),
    (
        "Gilbreth guide, 7.13",
        "node2: ssh: connect to host node2 port 22: Connection refused\n"
        "pdsh@node1: node2: ssh exited with exit code 255",
        "ssh_unreachable",
        ("srun with torchrun",),
    ),
    (
        "Gilbreth guide, 8.12 failure mode 1",
        "can't open file '/tmp/multinode_ds_test.py': [Errno 2] No such file or directory",
        "script_not_on_node",
        ("file system that all nodes share",),
    ),
    (
        "Gilbreth guide, 8.12 failure mode 2",
        "Bootstrap : no socket interface found",
        "nccl_no_socket_iface",
        ("unset NCCL_SOCKET_IFNAME",),
    ),
    (
        "Gilbreth guide, 8.12 failure mode 3",
        "***** Use of Purdue BoilerKey or SSH keys is Required ******\n"
        "pdsh@node: ssh exited with exit code 2",
        "rcac_boilerkey",
        ("srun with torchrun", "deepspeed --hostfile"),
    ),
    (
        "Gilbreth guide, 9.2 NCCL timeout",
        WATCHDOG.format(1, "10"),
        "torch_watchdog_timeout",
        ("NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME unset"),
    ),
    (
        "Gilbreth guide, 9.2 Invalid Account Error",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition "
        "combination specified",
        "slurm_account",
        ("account",),
    ),
    (
        "Gilbreth guide, 9.2 DeepSpeed Import Error",
        "ModuleNotFoundError: No module named 'torch._six'",
        "packages_do_not_fit",
        ("deepspeed 0.14.0",),
    ),
    (
        "Gilbreth guide, 9.2 DeepSpeed Import Error, on torch 2.4 or newer",
        "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api' "
        "(/opt/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py)",
        "deepspeed_too_old",
        ("deepspeed 0.14.4 or newer", "0.14.0"),
    ),
    (
        "Gilbreth guide, 9.2 Module Not Found",
        "Lmod has detected the following error:  These module(s) or extension(s) exist but cannot "
        'be loaded as requested: "cuda/12.1.1"',
        "environment_module_needs_others",
        ("module purge", "module load external"),
    ),
    (
        "Gilbreth guide, 9.2 NFS Stale Handle",
        "Cannot send after transport endpoint shutdown",
        "lustre_endpoint",
        ("wait a few minutes", "$HOME"),
    ),
    (
        "Nebius notes, attempt 1",
        "FileNotFoundError: ... cache-xxxx.arrow ... No such file or directory",
        "hf_datasets_cache_race",
        ("rank 0 alone",),
    ),
    (
        "Nebius notes, attempt 2",
        "torch.OutOfMemoryError ... _multi_tensor_adamw ... torch._foreach_sqrt",
        "cuda_oom",
        ("LoRA",),
    ),
    (
        "Nebius notes, issue A",
        "node1:1:2 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
        "nccl_transports_differ",
        ("NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME"),
    ),
    (
        "Nebius notes, issue A",
        "internal error - please report this issue to the NCCL developers",
        "nccl_internal_error",
        ("NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME"),
    ),
    (
        "Nebius notes, issue B",
        "Expected to mark a variable ready only once...",
        "ddp_ready_once",
        ("turn gradient checkpointing off", "use_reentrant=False"),
    ),
    (
        "Field guide, D1",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
        "variable MASTER_ADDR expected, but not set",
        "rank_env_missing",
        ("torchrun",),
    ),
    (
        "Field guide, D2",
        "bootstrap.cc:190 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 8",
        "nccl_rank_count",
        ("--rdzv-id",),
    ),
    (
        "Field guide, D3",
        "RuntimeError: CUDA error: invalid device ordinal",
        "invalid_device_ordinal",
        ("LOCAL_RANK",),
    ),
    (
        "Field guide, D4",
        "errno 98: Address already in use",
        "addr_in_use",
        ("--rdzv-endpoint",),
    ),
    (
        "Field guide, D6",
        "ValueError: Hostname 'worker-2' not found in hostfile",
        "ds_launcher_nodes",
        ("--hostfile", "slots=8"),
    ),
    (
        "Field guide, D8",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one. ... parameters that were not used in producing loss",
        "ddp_unfinished_reduction",
        ("take part in the loss", "find_unused_parameters=True"),
    ),
    (
        "Field guide, D15",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks",
        "slurm_oom",
        ("rank0_only", "offload_to_cpu"),
    ),
    (
        "Field guide, D17",
        "ValidationError: 1 validation error for DeepSpeedZeroConfig\nstagee\n  Extra inputs are "
        "not permitted",
        "ds_config_invalid",
        ("check the value named in the message",),
    ),
    (
        "Field guide, D18",
        "RuntimeError: unscale_() has already been called on this optimizer since the last "
        "update().",
        "grad_scaler_misused",
        ("model_engine.backward(loss)", "one place only"),
    ),
    (
        "Field guide, D19",
        "Detected mismatch between collectives on ranks",
        "collective_desync",
        ("if rank == 0",),
    ),
    (
        "FSDP guide, issue 1",
        "RuntimeError: The server socket has failed to listen on any local network address.",
        "addr_in_use",
        ("end the process that holds it",),
    ),
    (
        "FSDP guide, issue 2",
        "FileNotFoundError: /workspace/models/GLM-4.5-Air",
        "file_missing",
        ("mounted", "copy models and data"),
    ),
    (
        "FSDP guide, issue 2, by transformers",
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        "'/workspace/models/GLM-4.5-Air'. Use `repo_type` argument if needed.",
        "file_missing",
        ("mounted", "copy models and data"),
    ),
    (
        "FSDP guide, issue 3",
        "NCCL WARN ... connect to 10.11.7.50<12345> failed: No route to host",
        "no_route_to_host",
        ("open the ports", "ping"),
    ),
    (
        "FSDP guide, resuming",
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'./glm_fsdp_output/checkpoint-100/model_state_rank8.pt'",
        "checkpoint_shard_missing",
        ("copy all shards to all nodes",),
    ),
    (
        "Chapter 8, 4.3",
        "RuntimeError: The size of tensor a (0) must match the size of tensor b (4096) at "
        "non-singleton dimension 1",
        "zero3_empty_parameter",
        ("GatheredParameters",),
    ),
    (
        "Chapter 8, 5.3",
        "sbatch: error: Batch job submission failed: Job dependency problem",
        "slurm_dependency",
        ("sbatch --parsable",),
    ),
    (
        "Chapter 8, 5.3, in the queue",
        "4712 gpu stage2 user PD 0:00 2 (DependencyNeverSatisfied)",
        "slurm_dependency",
        ("afterany",),
    ),
    (
        "Chapter 8, 8.1",
        "srun: Required node not available (down, drained or reserved)",
        "slurm_nodes_unavailable",
        ("sinfo",),
    ),
    (
        "Chapter 8, 8.2",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running.",
        "nvidia_smi_failed",
        ("nvidia-smi -L", "gres.conf"),
    ),
    (
        "Chapter 8, 8.2, slurmd",
        "slurmd: fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory",
        "slurmd_gres",
        ("correct gres.conf",),
    ),
    (
        "Chapter 8, 9.4, megatron-core from PyPI",
        "ModuleNotFoundError: No module named 'megatron.training'",
        "megatron_core_only",
        ("from source",),
    ),
    (
        "Chapter 8, 9.4, TP_SIZE",
        "AssertionError: 12 is not divisible by 8",
        "parallel_sizes",
        ("divides the number of attention heads",),
    ),
    (
        "Chapter 8, 9.4, environment",
        "RuntimeError: Using async gradient all reduce requires setting the environment variable "
        "CUDA_DEVICE_MAX_CONNECTIONS to 1",
        "megatron_connections",
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1",),
    ),
    (
        "Chapter 8, 9.3",
        "EnvironmentNameNotFound: Could not find conda environment: research",
        "conda_env_missing",
        ("conda info --envs",),
    ),
]
