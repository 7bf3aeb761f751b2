"""The instruction data of train_lora_sft.py. Rank 0 loads and tokenises them and broadcasts them:
if every rank did so, the ranks would race for files in the cache of `datasets`."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset, load_dataset
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer, ByT5Tokenizer

from pytest_clustersmoke.rank import Rank

SHIPPED = Path(__file__).parent / "data" / "instructions.jsonl"
Batch = dict[str, torch.Tensor]  # input_ids, attention_mask, labels: each (examples, seq_len)


def format_prompt(example: dict[str, Any]) -> str:
    """Instruction, input if there is one, response."""
    parts = [f"### Instruction:\n{example['instruction']}"]
    if example.get("input"):
        parts.append(f"### Input:\n{example['input']}")
    parts.append(f"### Response:\n{example['output']}")
    return "\n\n".join(parts)


def load_examples(source: str, count: int) -> list[dict[str, Any]]:
    """The first `count` examples of `source`: "shipped", a directory, or a name on the hub."""
    if source == "shipped":
        rows = Dataset.from_list([json.loads(line) for line in SHIPPED.read_text().splitlines()])
    else:
        rows = load_dataset(source, split="train")
    return list(rows.select(range(count)))


def load_tokenizer(model: str) -> Any:
    """The tokenizer of the model; for `tiny` a byte tokenizer, which needs no download."""
    tokenizer = ByT5Tokenizer() if model == "tiny" else AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # Mistral has none
    tokenizer.padding_side = "right"
    return tokenizer


def tokenise(texts: list[str], tokenizer: Any, seq_len: int) -> Batch:
    """Each text and an end token, cut or padded to `seq_len` tokens. Labels include the padding."""
    end = "" if isinstance(tokenizer, ByT5Tokenizer) else tokenizer.eos_token  # ByT5 adds its own
    settings = {"max_length": seq_len, "truncation": True, "padding": "max_length"}
    encoded = tokenizer([text + end for text in texts], return_tensors="pt", **settings)
    tokens = encoded["input_ids"]
    return {"input_ids": tokens, "attention_mask": encoded["attention_mask"], "labels": tokens}


def share_examples(args: argparse.Namespace, rank: Rank) -> tuple[Batch, int]:
    """All examples, tokenised by rank 0, and the size of the vocabulary, on every rank."""
    shared: list[Any] = [None]
    if rank.is_main:
        tokenizer = load_tokenizer(args.model)
        texts = [
            format_prompt(example) for example in load_examples(args.dataset, args.subset_size)
        ]
        shared = [(rank.rank, tokenise(texts, tokenizer, args.seq_len), tokenizer.get_vocab())]
        if args.model != "tiny" and not Path(args.model).is_dir():
            # Otherwise all ranks would download it at once.
            snapshot_download(args.model, allow_patterns=["*.json", "model*.safetensors"])
    dist.broadcast_object_list(shared, src=0)
    tokenised_by, examples, vocabulary = shared[0]
    rank.fact(
        tokenised_by=tokenised_by,
        tokenised_here=tokenised_by == rank.rank,
        examples=len(examples["input_ids"]),
        dataset_digest=digest({name: column.tolist() for name, column in examples.items()}),
        tokenizer_digest=digest(vocabulary),
    )
    return examples, max(vocabulary.values()) + 1


def batch_of(examples: Batch, rows: range, device: torch.device) -> Batch:
    """These rows of the examples; after the last row comes the first again."""
    index = torch.tensor(rows) % len(examples["input_ids"])
    return {name: column[index].to(device) for name, column in examples.items()}


def digest(values: Any) -> str:
    """A short hash that can be compared between ranks."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
