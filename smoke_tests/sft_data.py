"""The settings and the instruction data of train_lora_sft.py and train_fsdp.py.

Examples are loaded, formatted as prompts, and tokenised.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer, ByT5Tokenizer

SHIPPED = Path(__file__).parent / "data" / "instructions.jsonl"
Batch = dict[str, torch.Tensor]  # input_ids, attention_mask, labels: each (examples, seq_len)


def make_parser(description: str) -> argparse.ArgumentParser:
    """The arguments that both programs have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="name on the hub, path, or tiny")
    parser.add_argument("--dataset", required=True, help="name on the hub, directory, or shipped")
    parser.add_argument("--subset-size", type=int, required=True, help="number of examples used")
    parser.add_argument("--seq-len", type=int, required=True, help="tokens per padded example")
    parser.add_argument("--max-steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True, help="examples per rank and step")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def prepare_data(args: argparse.Namespace) -> tuple[Batch, dict[str, int]]:
    """All examples, tokenised, and the vocabulary; fills the caches of `datasets` and the hub."""
    tokenizer = load_tokenizer(args.model)
    texts = [format_prompt(example) for example in load_examples(args.dataset, args.subset_size)]
    if args.model != "tiny" and not Path(args.model).is_dir():
        snapshot_download(args.model, allow_patterns=["*.json", "model*.safetensors"])
    return tokenise(texts, tokenizer, args.seq_len), tokenizer.get_vocab()


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
