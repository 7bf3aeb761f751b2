"""Convert a distributed checkpoint of Megatron to one file for plain PyTorch, without Megatron.

    python smoke_tests/convert_megatron.py --checkpoint-dir checkpoint --output-dir exported \\
        --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
        --num-query-groups 8 --vocab-size 128256 --max-position-embeddings 2048

With `--compare FILE` it loads what it wrote into `PlainGpt` and prints, as JSON, how far the logits
are from those in the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.nn import functional

SIZES = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "vocab_size",
    "max_position_embeddings",
)
MODEL = "model.pt"
LAYERS = "decoder.layers."
ROTARY_BASE = 10_000.0
# The norms are stored under the names that they have where they are fused with the next layer.
NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}


class PlainAttention(nn.Module):
    """Causal attention of groups of query heads that share a key and a value."""

    def __init__(self, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, hidden // heads
        self.linear_qkv = nn.Linear(hidden, hidden + 2 * groups * self.width)
        self.linear_proj = nn.Linear(hidden, hidden)

    def forward(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, ...]) -> torch.Tensor:
        batch, length, _ = hidden.shape
        shared = self.heads // self.groups
        # Each group's query heads come first, then its key, then its value.
        mixed = self.linear_qkv(hidden).view(batch, length, self.groups, shared + 2, self.width)
        query, key, value = mixed.split([shared, 1, 1], dim=3)
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in (query, key, value))
        query, key = (rotate(part, *rotary) for part in (query, key))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=shared > 1
        )
        out: torch.Tensor = self.linear_proj(mixed.transpose(1, 2).flatten(2))
        return out


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings; the two halves of a head are the two coordinates."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat([-second, first], dim=-1) * sine


class PlainMlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_fc2(functional.gelu(self.linear_fc1(hidden)))
        return out


class PlainLayer(nn.Module):
    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.input_layernorm, self.pre_mlp_layernorm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.self_attention = PlainAttention(
            hidden, config["num_attention_heads"], config["num_query_groups"]
        )
        self.mlp = PlainMlp(hidden, config["ffn_hidden_size"])

    def forward(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, ...]) -> torch.Tensor:
        hidden = hidden + self.self_attention(self.input_layernorm(hidden), rotary)
        out: torch.Tensor = hidden + self.mlp(self.pre_mlp_layernorm(hidden))
        return out


class PlainGpt(nn.Module):
    """The GPT of `train_megatron.py` in plain PyTorch, with the same names of parameters."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.width = hidden // config["num_attention_heads"]
        self.embedding = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(config["vocab_size"], hidden)}
        )
        layers = nn.ModuleList(PlainLayer(config) for _ in range(config["num_layers"]))
        self.decoder = nn.ModuleDict({"layers": layers, "final_layernorm": nn.LayerNorm(hidden)})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (batch, length) -> logits of shape (batch, length, vocabulary)."""
        embeddings: Any = self.embedding["word_embeddings"]
        hidden = embeddings(tokens)
        frequency = ROTARY_BASE ** (-torch.arange(0, self.width, 2).float() / self.width)
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), frequency).repeat(1, 2)
        rotary = tuple(part.to(hidden.dtype) for part in (angles.cos(), angles.sin()))
        layers: Any = self.decoder["layers"]
        for layer in layers:
            hidden = layer(hidden, rotary)
        # The output layer is the embedding.
        return functional.linear(self.decoder["final_layernorm"](hidden), embeddings.weight)


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    """The model's tensors, each as a whole, without the optimizer's."""
    reader = FileSystemReader(str(directory))
    stored = reader.read_metadata().state_dict_metadata
    weights = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
        and key.startswith(("embedding.", "decoder.", "output_layer."))
    }
    load_shards(weights, storage_reader=reader)
    return weights


def name_layers(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Megatron stores one tensor for all layers; a model has one for each."""
    named: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        if not key.startswith(LAYERS):
            named[key] = tensor
            continue
        rest = key.removeprefix(LAYERS)
        for stored, name in NORMS.items():
            rest = rest.replace(stored, name)
        named |= {f"{LAYERS}{at}.{rest}": part.clone() for at, part in enumerate(tensor)}
    return named


def convert(directory: Path, output: Path, config: dict[str, int]) -> Path:
    """Write the model with its sizes to one file, and return its path."""
    weights = name_layers(read_weights(directory))
    output.mkdir(parents=True, exist_ok=True)
    torch.save({"model_state_dict": weights, "model_config": config}, output / MODEL)
    return output / MODEL


@torch.no_grad()
def compare(path: Path, expected: Path) -> dict[str, Any]:
    """Load the file into a model built anew; how far its logits are from those expected."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    given = torch.load(expected, map_location="cpu", weights_only=True)
    with torch.device("meta"):  # takes no memory
        model = PlainGpt(checkpoint["model_config"])
    model.load_state_dict(checkpoint["model_state_dict"], assign=True)
    logits = model(given["tokens"]).float()
    error = (logits - given["logits"]).norm() / given["logits"].norm()
    return {
        "logits_error": float(error),
        "imported_megatron": any(name.split(".")[0] == "megatron" for name in sys.modules),
    }


def run_apart(
    directory: Path, output: Path, config: dict[str, int], expected: Path
) -> dict[str, Any]:
    """Run this file in a process of its own, which has imported no Megatron; returns what `compare`
    found, or why it failed."""
    command = [sys.executable, __file__, f"--checkpoint-dir={directory}"]
    command += [f"--output-dir={output}", f"--compare={expected}"]
    command += [f"--{name.replace('_', '-')}={size}" for name, size in config.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"export_failed": reason[-500:]}
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--compare", type=Path, metavar="FILE", help="tokens and their logits")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, required=True)
    args = parser.parse_args()
    path = convert(
        args.checkpoint_dir, args.output_dir, {name: getattr(args, name) for name in SIZES}
    )
    if args.compare is not None:
        print(json.dumps(compare(path, args.compare)))


if __name__ == "__main__":
    main()
