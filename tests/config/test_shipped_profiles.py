"""The shipped profiles of cluster.yaml, the JSON Schema, and the reference page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from pytest_clustersmoke.config import profile_schema as schema
from pytest_clustersmoke.config.cluster_file import ClusterFile, load_cluster_file
from pytest_clustersmoke.config.expectations import Expectation, Reference
from pytest_clustersmoke.config.profile import (
    STAGE_LIMITS_S,
    EnvBlock,
    EnvSettings,
    Hardware,
    Limits,
    PhaseSettings,
    Profile,
)

ROOT = Path(__file__).parents[2]
LADDER = ("mlp_1gpu", "ddp_2gpu", "zero1_2gpu", "zero1_4node")
TWO_NODES = ("ddp_2node",)
LORA = ("lora_sft_ddp", "lora_sft_2node")
FSDP = ("fsdp_1node", "fsdp_lora_2node")
ZERO = ("zero2_4node", "zero3_offload_2node")
EPOCHS = ("ddp_epochs",)
SWEEP = ("allreduce_1node", "allreduce_multinode")


@pytest.fixture(scope="module")
def shipped() -> ClusterFile:
    return load_cluster_file(ROOT / "cluster.yaml", {})


def test_every_profile_loads_in_an_empty_environment(shipped: ClusterFile) -> None:
    """Under cron, which sets hardly any variables, every profile still loads."""
    assert shipped.names == ("local", "lab", "gilbreth", "nebius", "glm", "chapter8")
    for name in shipped.names:
        profile = shipped.profile(name)
        assert profile.name == name
        assert profile.shared_dir.is_absolute()
        assert "$" not in str(profile.shared_dir)
        assert shipped.description(name)


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("local", LADDER[:2] + TWO_NODES + EPOCHS + LADDER[2:] + ZERO + LORA + FSDP + SWEEP),
        ("lab", LADDER[:2] + TWO_NODES + EPOCHS + LADDER[2:] + ZERO + LORA + FSDP + SWEEP),
        ("gilbreth", LADDER + SWEEP),
        ("nebius", LORA + SWEEP),
        ("glm", (FSDP[1], SWEEP[1])),
        ("chapter8", (*TWO_NODES, FSDP[1], ZERO[1], "megatron_2node", SWEEP[1])),
    ],
)
def test_profiles_list_their_phases(
    shipped: ClusterFile, name: str, phases: tuple[str, ...]
) -> None:
    """`local` and `lab` run every phase of the ladder, the clusters with a guide those that the
    guide describes, and every cluster measures its collectives."""
    assert tuple(shipped.profile(name).phases) == phases


def test_environment_variables_choose_account_and_directory() -> None:
    """Another account or another directory for local runs does not need another file."""
    environ = {"CLUSTERSMOKE_ACCOUNT": "mine", "CLUSTERSMOKE_SHARED_DIR": "/there", "USER": "me"}
    file = load_cluster_file(ROOT / "cluster.yaml", environ)
    gilbreth = file.profile("gilbreth")
    assert gilbreth.slurm["account"] == "mine"
    assert gilbreth.shared_dir == Path("/scratch/gilbreth/me/worldsim/clustersmoke/runs")
    assert file.profile("local").shared_dir == Path("/there")


def test_gilbreth_requests_the_resources_of_its_guide(shipped: ClusterFile) -> None:
    """Each phase has the resources of its job's header in the guide. The guide has no sweep of
    collectives: it uses the resources of the job with as many nodes."""
    phases = shipped.profile("gilbreth").phases
    resources = {name: (p.nodes, p.gpus_per_node, dict(p.slurm)) for name, p in phases.items()}
    assert resources.pop("allreduce_1node") == resources["ddp_2gpu"]
    assert resources.pop("allreduce_multinode") == resources["zero1_4node"]
    keys = ("qos", "cpus_per_task", "mem", "time")
    assert resources == {
        "mlp_1gpu": (1, 1, dict(zip(keys, ("standby", 8, "50G", "00:30:00"), strict=True))),
        "ddp_2gpu": (1, 2, dict(zip(keys, ("normal", 8, "64G", "00:15:00"), strict=True))),
        "zero1_2gpu": (1, 2, dict(zip(keys, ("standby", 16, "100G", "00:30:00"), strict=True))),
        "zero1_4node": (
            4,
            2,
            dict(zip(keys, ("normal", 32, "200G", "01:00:00"), strict=True), exclusive=True),
        ),
    }


def test_chapter8_requests_the_resources_of_its_jobs(shipped: ClusterFile) -> None:
    """Two nodes of one GPU each, with the CPUs, memory and time of each job's header; the sweep has
    those of the DDP job."""
    profile = shipped.profile("chapter8")
    assert profile.slurm == {"partition": "gpu", "mem": "200G"}
    phases = profile.phases
    assert {(phase.nodes, phase.gpus_per_node) for phase in phases.values()} == {(2, 1)}
    assert {name: dict(phase.slurm) for name, phase in phases.items()} == {
        "ddp_2node": {"cpus_per_task": 28, "time": "24:00:00"},
        "fsdp_lora_2node": {"cpus_per_task": 28, "time": "24:00:00"},
        "zero3_offload_2node": {"cpus_per_task": 8, "time": "4:00:00"},
        "megatron_2node": {"cpus_per_task": 8, "time": "4:00:00"},
        "allreduce_multinode": {"cpus_per_task": 28, "time": "24:00:00"},
    }
    assert phases["megatron_2node"].env.set["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert phases["fsdp_lora_2node"].args == {"sharding": "full"}


def test_glm_reaches_both_nodes_of_its_guide(shipped: ClusterFile) -> None:
    """All GPUs of both, over the guide's interface; variables of the environment name others."""
    profile = shipped.profile("glm")
    assert [host.host for host in profile.hosts] == ["10.11.7.50", "innmi1srh2-p041"]
    phases = profile.phases.values()
    assert {(phase.nodes, phase.gpus_per_node) for phase in phases} == {(2, 8)}
    assert profile.env.multi_node.set == {"NCCL_SOCKET_IFNAME": "enp26s0np0"}
    environ = {"CLUSTERSMOKE_NODE0": "a", "CLUSTERSMOKE_NODE1": "b"}
    others = load_cluster_file(ROOT / "cluster.yaml", environ).profile("glm").hosts
    assert [host.host for host in others] == ["a", "b"]


def test_gilbreth_loads_external_first_and_unsets_interfaces(shipped: ClusterFile) -> None:
    """Its guide calls the order of the modules, and the interfaces between nodes, critical."""
    profile = shipped.profile("gilbreth")
    assert profile.setup[:2] == ("module purge", "module load external")
    assert {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} <= set(profile.env.multi_node.unset)
    assert profile.env.single_node.set["NCCL_IB_DISABLE"] == "1"
    assert profile.env.multi_node.set["NCCL_IB_DISABLE"] == "0"


def test_gilbreth_expects_the_versions_of_its_guide(shipped: ClusterFile) -> None:
    """Sections 2.2 and 5.5; NCCL with several ranks, DeepSpeed under ZeRO."""
    everywhere = {
        "python": "3.10.19",
        "torch": "2.2.0+cu121",
        "cuda": "12.1",
        "cudnn": "8902",
        "driver": "565.57.01",
    }
    of_several = everywhere | {"nccl": "2.19.3"}
    of_zero = of_several | {"deepspeed": "0.14.0"}
    expect = shipped.profile("gilbreth").expect
    assert {name: dict(each.versions) for name, each in expect.items()} == {
        "mlp_1gpu": everywhere,
        "ddp_2gpu": of_several,
        "zero1_2gpu": of_zero,
        "zero1_4node": of_zero,
        "allreduce_1node": of_several,
        "allreduce_multinode": of_several,
    }


def test_references_of_memory_are_converted_to_gib(shipped: ClusterFile) -> None:
    """The guide's decimal GB are the same memory in GiB."""
    decimal = {"mlp_1gpu": 0.52, "ddp_2gpu": 2.44, "zero1_2gpu": 9.68, "zero1_4node": 7.12}
    references = shipped.profile("gilbreth").references
    for phase, gigabytes in decimal.items():
        memory = references[phase]["peak_memory_gib"]
        assert memory.value == pytest.approx(gigabytes * 1e9 / 2**30, abs=6e-4)
        assert (memory.lower, memory.upper) == (None, 0.1)


@pytest.mark.parametrize("name", ["gilbreth", "nebius"])
def test_every_phase_with_several_ranks_expects_its_transports(
    shipped: ClusterFile, name: str
) -> None:
    """If transports are required, each phase with several ranks lists them."""
    profile = shipped.profile(name)
    assert "transports" in profile.require
    for phase, chosen in profile.phases.items():
        expect = profile.expect[phase]
        several_nodes = (chosen.nodes or 1) > 1
        assert bool(expect.intra_node) is ((chosen.gpus_per_node or 1) > 1), phase
        assert bool(expect.inter_node) is several_nodes and bool(expect.versions), phase


def test_nebius_pins_tcp_between_nodes(shipped: ClusterFile) -> None:
    """Two nodes use TCP on eth0, and `expect` requires it."""
    profile = shipped.profile("nebius")
    assert profile.env.multi_node.set["NCCL_NET"] == "Socket"
    assert profile.env.single_node.set["NCCL_SOCKET_IFNAME"] == "^lo,docker0"
    for phase in ("lora_sft_2node", "allreduce_multinode"):
        assert profile.expect[phase].inter_node == ("NET/Socket",)
    assert profile.slurm == {
        "partition": "gpu", "mem": 0, "cpus_per_task": 64, "time": "01:00:00",
    }  # fmt: skip


def test_nebius_debugs_collectives_on_one_node_alone(shipped: ClusterFile) -> None:
    """The document's two-node reference was measured without TORCH_DISTRIBUTED_DEBUG."""
    env = shipped.profile("nebius").env
    blocks = {"common": env.common, "one node": env.single_node, "several": env.multi_node}
    values = {name: block.set.get("TORCH_DISTRIBUTED_DEBUG") for name, block in blocks.items()}
    assert values == {"common": None, "one node": "DETAIL", "several": None}


def test_schema_file_is_up_to_date() -> None:
    """The shipped schema is the one that the models generate."""
    assert json.loads(schema.SCHEMA_PATH.read_text()) == schema.generate(), (
        "run python -m pytest_clustersmoke.config.profile_schema"
    )


def test_reference_page_lists_every_key_and_default() -> None:
    """The page lists every key of the models and every default limit."""
    text = (ROOT / "docs" / "reference" / "cluster-yaml.md").read_text()
    models: tuple[type[BaseModel], ...] = (
        Profile, Hardware, EnvSettings, EnvBlock, Limits, PhaseSettings, Reference, Expectation,
    )  # fmt: skip
    missing = [key for model in models for key in model.model_fields if f"`{key}`" not in text]
    assert missing == []
    assert [s for s, limit in STAGE_LIMITS_S.items() if f"`{s}` {limit:g}" not in text] == []


def test_reading_profiles_imports_no_heavy_module() -> None:
    """Profiles are read on a login node, before any run: no torch, numpy or submitit."""
    code = (
        "import sys; from pathlib import Path; "
        "from pytest_clustersmoke.config.cluster_file import load_cluster_file; "
        "load_cluster_file(Path('cluster.yaml'), {}).profile('gilbreth'); "
        "print([m for m in ('torch', 'numpy', 'submitit', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
