"""Fine-tune a causal language model with LoRA under FSDP2, sharded within nodes or over all ranks.

    torchrun --standalone --nproc_per_node=2 smoke_tests/train_fsdp.py \\
        --model tiny --dataset shipped --subset-size 64 --seq-len 64 \\
        --max-steps 10 --micro-batch 1 --sharding full --learning-rate 5e-3
    torchrun --nnodes=2 --nproc_per_node=8 ... smoke_tests/train_fsdp.py \\
        --model mistralai/Mistral-7B-v0.1 --dataset yahma/alpaca-cleaned --subset-size 2048 \\
        --seq-len 512 --max-steps 20 --micro-batch 1 --sharding hybrid
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    sys.exit(f"train_fsdp.py needs torch 2.6 or newer; this is torch {torch.__version__}")

from fsdp_model import describe_units, load, state_of, watch_forward
from pytest_clustersmoke.rank import Proof, Rank
from sft_data import Batch, make_parser, prepare_data
from sft_model import add_adapters, build_base, describe_trained

SHARDINGS = ("full", "grad_op", "hybrid")
SHARDS = "sharded"
STOPPED = "stopped"  # what the first attempt leaves to the next
LOG = "log.jsonl"
EVALUATED = 8  # examples that each rank evaluates after training, its own


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--sharding", choices=SHARDINGS, required=True)
    return parser.parse_args()


def shard(model: Any, args: argparse.Namespace, rank: Rank) -> Any:
    """Shard each layer, and what is left as the root unit: parameters, gradients and the optimizer.

    Masters and reductions are in fp32, the computation in `args.precision`.
    """
    ranks, local = rank.world_size, rank.local_world_size
    shape = (ranks // local, local) if args.sharding == "hybrid" else (ranks,)
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh(rank.device.type, shape, mesh_dim_names=names)
    compute = torch.bfloat16 if args.precision == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    layers = [m for m in model.modules() if type(m).__name__ in model._no_split_modules]
    for unit in (*layers, model):
        fully_shard(
            unit, mesh=mesh, mp_policy=policy, reshard_after_forward=args.sharding != "grad_op"
        )
    return model


def build(args: argparse.Namespace, rank: Rank, vocabulary: int, seed: int) -> tuple[Any, Any]:
    """The sharded model and its optimizer, which steps on this rank's shards. The whole base is
    built on each device first, so it must fit there."""
    own = argparse.Namespace(**{**vars(args), "precision": "fp32", "seed": seed})
    model = shard(add_adapters(build_base(own, vocabulary)).to(rank.device), args, rank)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, torch.optim.AdamW(trained, lr=args.learning_rate)


def draw(examples: Batch, args: argparse.Namespace, rank: Rank, index: int, other: int) -> Batch:
    """The batch of rank `other` in step `index`; no two share an example until all are used."""
    first = (index * rank.world_size + other) * args.micro_batch
    rows = torch.arange(first, first + args.micro_batch) % args.subset_size
    return {name: column[rows].to(rank.device) for name, column in examples.items()}


@torch.no_grad()
def evaluate(model: Any, examples: Batch, rank: Rank) -> dict[str, Any]:
    """All ranks evaluate, each its own examples; the criterion computes the mean again."""
    model.eval()
    first = rank.rank * EVALUATED
    rows = torch.arange(first, first + EVALUATED) % len(examples["input_ids"])
    batch = {name: column[rows].to(rank.device) for name, column in examples.items()}
    with watch_forward(model) as facts:
        own = model(**batch).loss
    mean = own.double() / rank.world_size
    dist.all_reduce(mean)
    model.train()
    return {"eval_loss_own": float(own), "eval_loss": float(mean), **facts}


def sum_shards(model: Any, rank: Rank) -> dict[str, int]:
    """A checksum of each of this rank's shards."""
    return rank.checksums((name, p.to_local()) for name, p in model.named_parameters())


def save(model: Any, optimizer: Any, rank: Rank) -> None:
    """All ranks save, each its shards; rank 0 also writes the gathered adapters as one file."""
    save_shards(state_of(model, optimizer), checkpoint_id=str(rank.output_dir / SHARDS))
    adapters = {n: p.full_tensor().cpu() for n, p in model.named_parameters() if p.requires_grad}
    if rank.is_main:
        path = rank.output_dir / "adapter"
        model.save_pretrained(str(path), state_dict=adapters, save_embedding_layers=False)
        saved = load_file(path / "adapter_model.safetensors")
        plain = {name.replace(".default.", "."): value for name, value in adapters.items()}
        rank.fact(
            adapter_written_by=rank.rank,
            adapter_is_equal=saved.keys() == plain.keys()
            and all(torch.equal(saved[name], plain[name]) for name in plain),
        )


def write_log(losses: dict[int, torch.Tensor], rank: Rank) -> None:
    """A line for each step with its mean loss. All ranks reduce the losses, rank 0 alone writes."""
    means = torch.stack(list(losses.values())) / rank.world_size
    dist.all_reduce(means)
    lines = [{"step": n, "loss": loss} for n, loss in zip(losses, means.tolist(), strict=True)]
    if rank.is_main:
        path = rank.output_dir / LOG
        with path.open("a") as log:
            log.writelines(json.dumps(line) + "\n" for line in lines)
        logged = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        rank.fact(log_written_by=rank.rank, logged_steps=logged)


def train(args: argparse.Namespace, rank: Rank, examples: Batch, vocabulary: int) -> Any:
    """Train, evaluate and save; returns a digest of the state, or None if another attempt goes on.
    Frees the model: two might not fit."""
    # Model.
    model, optimizer = rank.stage("model", lambda: build(args, rank, vocabulary, args.seed))
    rank.fact(**describe_trained(model), **describe_units(model), precision=args.precision)

    def loss_on(index: int, other: int) -> torch.Tensor:
        loss: torch.Tensor = model(**draw(examples, args, rank, index, other)).loss
        return loss

    # A later attempt goes on with the state that the one before saved.
    rank.resume(lambda: load(str(rank.output_dir / STOPPED), model, optimizer))

    # Loop. The passes that prove a step gather the parameters as the engine's do.
    before, untrained = sum_shards(model, rank), evaluate(model, examples, rank)
    rank.fact(eval_loss_before=untrained["eval_loss"])
    proof = Proof(
        model,
        local_loss=lambda index: loss_on(index, rank.rank),
        precision=args.precision,
        optimizer=optimizer,
        peer_loss=loss_on,
    )
    losses: dict[int, torch.Tensor] = {}
    for step in rank.steps(
        args.max_steps,
        samples_per_rank=args.micro_batch,
        tokens_per_rank=args.micro_batch * args.seq_len,  # padding included
        proof=proof,
    ):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_on(step.index, rank.rank)
        loss.backward()
        step.backward_done()
        optimizer.step()
        step.record(loss=loss)
        losses[step.index + 1] = loss.detach()  # read after the loop, since reading waits for it
    write_log(losses, rank)
    if rank.should_stop:  # the next attempt goes on from here
        state = state_of(model, optimizer)
        path = str(rank.output_dir / STOPPED)
        rank.save_progress(
            lambda: save_shards(state, checkpoint_id=path),
            state=state,
            next_loss=lambda index: loss_on(index, rank.rank),
        )
        return None
    after = sum_shards(model, rank)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    changed = {name for name in after if after[name] != before[name]}
    rank.fact(
        **evaluate(model, examples, rank),
        base_unchanged=not changed - trained,
        adapters_changed=trained <= changed,
    )

    # Checkpoint. Each rank saves its shards, rank 0 the adapters as well.
    rank.save_checkpoint(lambda: save(model, optimizer, rank))
    return rank.digest(state_of(model, optimizer))


def main() -> None:
    args = parse_args()
    with Rank.start(init="torch") as rank:
        if args.precision == "auto":
            args.precision = "bf16" if rank.device.type == "cuda" else "fp32"

        # Data. Rank 0 alone prepares them, or the ranks would race for files in the caches.
        examples, names = rank.stage("data", lambda: rank.run_on_main(partial(prepare_data, args)))
        vocabulary = max(names.values()) + 1
        rank.fact(examples=len(examples["input_ids"]), dataset_digest=rank.digest(examples).hex)

        trained = train(args, rank, examples, vocabulary)
        if rank.should_stop:
            return
        gc.collect()
        path = str(rank.output_dir / SHARDS)
        seed = args.seed + 1
        rank.verify_reload(trained, lambda: load(path, *build(args, rank, vocabulary, seed)))


if __name__ == "__main__":
    main()
