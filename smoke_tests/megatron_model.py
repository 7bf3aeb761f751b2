"""A GPT of Megatron's core, split over ranks as asked: process groups, model, optimizer."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from torch import nn
from torch.nn import functional

from pytest_clustersmoke.rank import Rank

PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
# The optimizer's part of a checkpoint is stored so that any other split can load it.
SHARDING = {"distrib_optim_sharding_type": "fully_reshardable"}


def check_sizes(args: argparse.Namespace, world_size: int) -> None:
    """Raise ValueError, with all that is wrong, if the model or the batch cannot be split."""
    split = args.tp * args.pp * args.cp
    replicas = max(1, world_size // split)
    parts = [
        (f"{world_size} ranks", world_size, "tp x pp x cp", split),
        (f"{args.layers} layers", args.layers, "pp", args.pp),
        (f"{args.query_groups} query groups", args.query_groups, "tp", args.tp),
        (f"{args.heads} heads", args.heads, "query groups", args.query_groups),
        (f"a hidden size of {args.hidden_size}", args.hidden_size, "2 x heads", 2 * args.heads),
        (f"an inner size of {args.ffn_hidden_size}", args.ffn_hidden_size, "tp", args.tp),
        (f"a vocabulary of {args.vocab_size}", args.vocab_size, "tp", args.tp),
        (
            f"a sequence of {args.seq_len}",
            args.seq_len,
            "tp x (2 x cp, if cp > 1)",
            args.tp * (2 * args.cp if args.cp > 1 else 1),
        ),
        (
            f"a global batch of {args.global_batch}",
            args.global_batch,
            "micro batch x replicas",
            args.micro_batch * replicas,
        ),
    ]
    if args.cp > 1 and find_spec("transformer_engine") is None:
        raise ValueError(
            f"cp = {args.cp} needs the attention of Transformer Engine, which is not installed; "
            "expected pip install 'transformer-engine[pytorch]' on the nodes, or cp = 1"
        )
    wrong = [f"{what} by {by} = {factor}" for what, size, by, factor in parts if size % factor]
    if wrong:
        raise ValueError(f"cannot divide {'; or '.join(wrong)}; expected no remainder")


class Norm(nn.LayerNorm):
    """A layer norm that runs on any device. Without Apex or Transformer Engine Megatron's own
    refuses sequence parallelism, in which each rank's gradient comes from its share of the
    sequence; the mark has Megatron add them up."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class Attention(nn.Module):
    """torch's attention. Megatron's own, without Transformer Engine, keeps a matrix of
    length x length for each head until the backward pass: 21 GB at the full size."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        heads = [part.permute(1, 2, 0, 3) for part in (query, key, value)]  # length comes first
        mixed = functional.scaled_dot_product_attention(
            heads[0], heads[1], heads[2], is_causal=True, enable_gqa=query.shape[2] > key.shape[2]
        )
        return mixed.permute(2, 0, 1, 3).flatten(2)


def choose_layers(config: TransformerConfig) -> TransformerBlockSubmodules:
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = Attention
    if config.context_parallel_size > 1:  # only this one exchanges keys and values between ranks
        from megatron.core.extensions.transformer_engine import TEDotProductAttention

        attention.core_attention = TEDotProductAttention
    return TransformerBlockSubmodules([layer] * get_num_layers_to_build(config), Norm)


def configure(args: argparse.Namespace) -> TransformerConfig:
    return TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.heads,
        num_query_groups=args.query_groups,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bf16=args.precision == "bf16",
        params_dtype=torch.float32,  # Float16Module converts them
        pipeline_dtype=PRECISIONS[args.precision],
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        context_parallel_size=args.cp,
        sequence_parallel=args.tp > 1,  # Megatron refuses it otherwise
        # Each rank draws whole weights and keeps its part, so they do not depend on tp.
        use_cpu_initialization=True,
        finalize_model_grads_func=finalize_model_grads,
    )


@dataclass(frozen=True)
class Engine:
    """What trains: Megatron's data parallelism around the model, and its optimizer."""

    ddp: Any
    optimizer: Any

    @property
    def half(self) -> Any:
        """The model as the engine calls it, in its precision, without data parallelism."""
        return self.ddp.module

    @property
    def model(self) -> Any:
        return getattr(self.half, "module", self.half)

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.parameters())).device  # type: ignore[no-any-return]

    @property
    def adam(self) -> Any:
        """torch's optimizer, or Transformer Engine's, which steps on this rank's share."""
        return self.optimizer.chained_optimizers[0].optimizer

    def find_applied(self, parameter: Any) -> torch.Tensor:
        """The gradient that the optimizers of all replicas apply: each has reduced one part of the
        buffer that it is in, so all ranks of the group gather them."""
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        buckets = self.ddp.param_to_bucket_group[parameter].buckets
        bucket = next(b for b in buckets if parameter in b.params)
        if not self.ddp.ddp_config.use_distributed_optimizer:
            whole: torch.Tensor = parameter.main_grad
            return whole
        own = bucket.grad_data.chunk(group.size())[group.rank()]
        whole = torch.empty_like(bucket.grad_data)
        dist.all_gather_into_tensor(whole, own.contiguous(), group=group)
        start, end = bucket.param_to_index[parameter]
        return whole[start:end].view(parameter.shape)

    def state(self) -> dict[str, Any]:
        """What this rank holds: its part of the model, and its share of the optimizer."""
        groups = [group["params"] for group in self.adam.param_groups]
        return {
            "model": dict(self.model.named_parameters()),
            "masters": groups,
            "moments": [[dict(self.adam.state[p]) for p in group] for group in groups],
        }

    def save(self, directory: Path) -> None:
        """All ranks save, each its part; those with the same part share the work."""
        directory.mkdir(exist_ok=True)
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        strategy = FullyParallelSaveStrategyWrapper(get_default_save_sharded_strategy(), group)
        dist_checkpointing.save(self._shards(), str(directory), strategy)

    def load(self, directory: Path) -> dict[str, Any]:
        """Load the checkpoint of any split, and return the state."""
        self._make_moments()
        loaded = dist_checkpointing.load(self._shards(is_loading=True), str(directory))
        self.half.load_state_dict(loaded["model"])
        self._load_optimizer(loaded["optimizer"])
        return self.state()

    def _shards(self, is_loading: bool = False) -> dict[str, Any]:
        """What a checkpoint holds: which part of each tensor is this rank's."""
        model = self.half.sharded_state_dict()
        return {
            "model": model,
            "optimizer": self.optimizer.sharded_state_dict(
                model, is_loading=is_loading, metadata=SHARDING
            ),
        }

    def _make_moments(self) -> None:
        """torch's Adam has none before its first step, but Megatron asks for them as it loads."""
        for group in self.adam.param_groups if isinstance(self.adam, torch.optim.Adam) else ():
            for parameter in group["params"]:
                moments = {n: torch.zeros_like(parameter) for n in ("exp_avg", "exp_avg_sq")}
                self.adam.state[parameter] = {"step": torch.zeros(()), **moments}

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        """Megatron looks for all of Adam's state among a parameter's tensors, but stores torch's
        `step` elsewhere; so it is put aside meanwhile."""
        steps: dict[Any, torch.Tensor] = {}

        def set_aside(adam: Any) -> None:
            steps.update({p: kept.pop("step") for p, kept in adam.state.items() if "step" in kept})

        hook = self.adam.register_load_state_dict_post_hook(set_aside)
        self.optimizer.load_state_dict(state)
        hook.remove()
        for parameter, step in steps.items():
            self.adam.state[parameter]["step"] = step.clone()  # they had one in common


def build(args: argparse.Namespace, rank: Rank, seed: int) -> Engine:
    config = configure(args)
    torch.manual_seed(seed + 100 * parallel_state.get_pipeline_model_parallel_rank())
    if rank.device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
    model: Any = GPTModel(
        config,
        choose_layers(config),
        vocab_size=args.vocab_size,
        max_sequence_length=args.seq_len,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=True,
    ).to(rank.device)
    if args.precision != "fp32":
        model = Float16Module(config, model)
    wrapped = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
        model,
    )
    settings = OptimizerConfig(
        optimizer="adam",
        lr=args.learning_rate,
        min_lr=args.learning_rate,
        bf16=args.precision == "bf16",
        params_dtype=PRECISIONS[args.precision],
        use_distributed_optimizer=True,
        clip_grad=args.clip,
    )
    return Engine(wrapped, get_megatron_optimizer(settings, [wrapped]))


def read_back(engine: Engine) -> dict[str, Any]:
    """The settings in effect, as groups, model and optimizer show them."""
    parameters = list(engine.model.parameters())
    held = sum(p.numel() for p in parameters)
    split = sum(p.numel() for p in parameters if getattr(p, "tensor_model_parallel", False))
    sizes = {
        "tp": parallel_state.get_tensor_model_parallel_group().size(),
        "pp": parallel_state.get_pipeline_model_parallel_group().size(),
        "cp": parallel_state.get_context_parallel_group().size(),
        "dp": parallel_state.get_data_parallel_group().size(),
    }
    own = [p for group in engine.adam.param_groups for p in group["params"]]
    return {
        "group_sizes": sizes,
        "parameters": held + split * (sizes["tp"] - 1),  # with pp, of this stage
        "optimizer_share": sum(p.numel() for p in own) / held,
        "engine": type(engine.ddp).__name__,
        "megatron_optimizer": type(engine.optimizer.chained_optimizers[0]).__name__,
        "optimizer": type(engine.adam).__name__,
        "parameter_dtypes": sorted({str(p.dtype) for p in parameters}),
        "gradient_dtypes": sorted({str(p.main_grad.dtype) for p in parameters}),
        "master_dtypes": sorted({str(p.dtype) for p in own}),
    }
