"""Train a GPT with Megatron's core, split over tensor, pipeline, context and data parallel ranks.

    torchrun --nnodes=2 --nproc_per_node=1 ... smoke_tests/train_megatron.py \\
        --layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --heads 32 --query-groups 8 \\
        --seq-len 2048 --vocab-size 128256 --micro-batch 1 --global-batch 128 --steps 20 \\
        --tp 1 --pp 1 --cp 1

Megatron's kernels need CUDA, and so does this program. Training is in bf16, with sequence
parallelism where tp > 1, and with the distributed optimizer. The learning rate is constant.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

import convert_megatron
from megatron_model import PRECISIONS, Engine, build, check_sizes, read_back
from pytest_clustersmoke.rank import Groups, Proof, Rank

# The mock data: sequences that count up from a random number, all below COUNTED; a model learns
# this in a few steps.
COUNTED = 512
EXPORTED, LOGITS = "exported", "logits.pt"
COMPARED_TOKENS = 64  # whose logits the converted model must give as well


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--hidden-size", type=int, required=True)
    parser.add_argument("--ffn-hidden-size", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True, help="of attention")
    parser.add_argument("--query-groups", type=int, required=True, help="that share a key")
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True, help="sequences in a step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--tp", type=int, required=True, help="tensor parallel ranks")
    parser.add_argument("--pp", type=int, required=True, help="pipeline parallel ranks")
    parser.add_argument("--cp", type=int, required=True, help="context parallel ranks")
    parser.add_argument("--precision", choices=[*PRECISIONS], default="bf16")
    parser.add_argument("--learning-rate", type=float, default=1.5e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Batch(NamedTuple):
    tokens: torch.Tensor  # all of shape (micro batch, this rank's part of the sequence)
    labels: torch.Tensor
    positions: torch.Tensor


def take_part(sequences: torch.Tensor, cp: int, cp_rank: int) -> torch.Tensor:
    """This rank's part of each sequence: of 2 x cp pieces one from the front and one from the back,
    so that all ranks have as much to attend to."""
    if cp == 1:
        return sequences
    pieces = sequences.chunk(2 * cp, dim=1)
    return torch.cat([pieces[cp_rank], pieces[2 * cp - 1 - cp_rank]], dim=1)


def draw(args: argparse.Namespace, rank: Rank, index: int, replica: int) -> Iterator[Batch]:
    """The micro batches of one replica in step `index`: equal on all ranks of its model, except
    that each context parallel rank gets its part of the sequences."""
    replicas = parallel_state.get_data_parallel_world_size()
    cp_rank = parallel_state.get_context_parallel_rank()
    numbers = torch.Generator().manual_seed(args.seed * 1_000_003 + index)
    starts = torch.randint(COUNTED, (args.global_batch, 1), generator=numbers)
    counts = (starts + torch.arange(args.seq_len + 1)) % min(COUNTED, args.vocab_size)
    positions = torch.arange(args.seq_len).expand(args.global_batch, -1)
    fields = [
        take_part(each, args.cp, cp_rank).to(rank.device)
        for each in (counts[:, :-1], counts[:, 1:], positions)
    ]
    own = [each.chunk(replicas)[replica].split(args.micro_batch) for each in fields]
    yield from map(Batch, *own)


def forward(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Any]:
    """What Megatron's schedule calls for each micro batch: the output, and its loss."""
    tokens, labels, positions = next(batches)

    def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = losses.float().mean()
        return loss, loss.detach().clone()

    return model(tokens, positions, None, labels=labels), loss_of


def backward(
    args: argparse.Namespace,
    engine: Engine,
    batches: Iterator[Batch],
    local_done: Callable[[], None],
) -> torch.Tensor:
    """All micro batches of a step, and the reduction of their gradients; returns the loss."""

    def run_forward(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Any]:
        result = forward(batches, model)
        local_done()  # what follows waits for the other replicas
        return result

    engine.ddp.zero_grad_buffer()
    engine.optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=run_forward,
        data_iterator=batches,
        model=engine.ddp,
        num_microbatches=count_micro_batches(args),
        seq_length=args.seq_len,
        micro_batch_size=args.micro_batch,
        forward_only=False,
    )
    loss: torch.Tensor = sum(losses, torch.zeros((), device=engine.device))
    if args.pp > 1:  # only the last stage has losses
        last = parallel_state.get_pipeline_model_parallel_last_rank()
        dist.broadcast(loss, last, group=parallel_state.get_pipeline_model_parallel_group())
    return loss / count_micro_batches(args)


def count_micro_batches(args: argparse.Namespace) -> int:
    """Of one replica in a step."""
    replicas = parallel_state.get_data_parallel_world_size()
    return int(args.global_batch // args.micro_batch // replicas)


@torch.no_grad()
def write_logits(args: argparse.Namespace, engine: Engine, rank: Rank) -> None:
    """The logits of a few tokens by the model as it is split, in a file; and which share of the
    sequence this rank has between two layers."""
    held: list[int] = []
    hook = engine.model.decoder.final_layernorm.register_forward_pre_hook(
        lambda _, given: held.append(given[0].shape[0])
    )
    tokens = next(draw(args, rank, 0, 0)).tokens[:1, : min(args.seq_len, COMPARED_TOKENS)]
    positions = torch.arange(tokens.shape[1], device=rank.device)[None]
    logits = engine.half(tokens, positions, None, runtime_gather_output=True)
    hook.remove()
    rank.fact(sequence_share=held[0] / tokens.shape[1])
    if rank.is_main:
        saved = {"tokens": tokens.cpu(), "logits": logits.float().cpu()}
        torch.save(saved, rank.output_dir / LOGITS)


def export(args: argparse.Namespace, rank: Rank, checkpoint: Path) -> dict[str, Any]:
    """Convert the checkpoint for plain PyTorch, in a process without Megatron, and compare."""
    sizes = {
        "num_layers": args.layers,
        "hidden_size": args.hidden_size,
        "ffn_hidden_size": args.ffn_hidden_size,
        "num_attention_heads": args.heads,
        "num_query_groups": args.query_groups,
        "vocab_size": args.vocab_size,
        "max_position_embeddings": args.seq_len,
    }
    out = rank.output_dir
    return convert_megatron.run_apart(checkpoint, out / EXPORTED, sizes, out / LOGITS)


def train(args: argparse.Namespace, rank: Rank, checkpoint: Path) -> Any:
    """Train and save; returns a digest of the state. Frees the engine: two might not fit."""
    # Model.
    engine = rank.stage("model", lambda: build(args, rank, args.seed))
    rank.fact(**read_back(engine), precision=args.precision)
    data = parallel_state.get_data_parallel_group(with_context_parallel=True)
    replica = parallel_state.get_data_parallel_rank()

    def losses(index: int, replica: int = replica) -> Iterator[torch.Tensor]:
        for batch in draw(args, rank, index, replica):
            output, loss_of = forward(iter([batch]), engine.half)
            yield loss_of(output)[0] / count_micro_batches(args)

    # Loop. A rank repeats its passes with the other ranks of its model. A stage of a pipeline has
    # no pass of its own, and proves nothing.
    proof = None
    if args.pp > 1:
        rank.fact(pipeline_stage=parallel_state.get_pipeline_model_parallel_rank())
    else:
        proof = Proof(
            engine.model,
            losses,
            applied=engine.find_applied,
            precision=args.precision,
            optimizer=engine.adam,
            peer_loss=losses if args.tp * args.cp == 1 else None,
            groups=Groups(parallel_state.get_tensor_model_parallel_group(), data, args.cp),
        )
    of_a_rank = args.global_batch / rank.world_size
    of_a_replica = args.global_batch // parallel_state.get_data_parallel_world_size()
    for step in rank.steps(
        args.steps,
        samples_per_rank=of_a_rank if proof is None else of_a_replica,
        tokens_per_rank=of_a_rank * args.seq_len,
        proof=proof,
    ):
        batches = draw(args, rank, step.index, replica)
        loss = backward(args, engine, batches, step.local_done)
        step.backward_done()
        engine.optimizer.step()
        step.record(loss=loss)

    # Checkpoint. It is also converted for plain PyTorch, and compared where a rank has all layers
    # and whole sequences.
    rank.save_checkpoint(lambda: engine.save(checkpoint))
    if args.pp * args.cp == 1:
        write_logits(args, engine, rank)
        convert = partial(rank.run_on_main, lambda: export(args, rank, checkpoint))
        rank.fact(**rank.stage("checkpoint", convert))
    return rank.digest(engine.state())


def main() -> None:
    args = parse_args()
    if args.tp > 1:
        # NVLink SHARP adds in another order each time, so a repeated pass would give other bits.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with Rank.start(init="torch") as rank:
        check_sizes(args, rank.world_size)
        parallel_state.initialize_model_parallel(args.tp, args.pp, context_parallel_size=args.cp)
        checkpoint = rank.output_dir / f"iter_{args.steps:07}"
        trained = train(args, rank, checkpoint)
        gc.collect()
        seed = args.seed + 1
        rank.verify_reload(trained, lambda: build(args, rank, seed).load(checkpoint))


if __name__ == "__main__":
    main()
