"""Instruction data of train_lora_sft.py: loaded by name or path, tokenised once, read by all.

Ranks that call `datasets.map` at the same time over one cache race for its files. So rank 0 alone
loads, tokenises and saves; it then tells every rank what it did, and all read the same from disk.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from datasets import DatasetDict, load_dataset, load_from_disk
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SHIPPED = Path(__file__).parent / "data" / "instructions.jsonl"
TINY_VOCABULARY = 1024
VISIBLE_WITHIN_S = 60.0  # a network file system may hide another node's new files this long


@dataclass(frozen=True)
class Prepared:
    """What every rank trains on, as it read it from disk."""

    dataset: Any  # columns row, input_ids, attention_mask; every example padded to seq_len
    tokenizer: Any
    digest: str  # of the rows as read here; equal on all ranks, or they read different data
    tokenizer_digest: str
    tokenised_by: int  # the rank that says it did it
    tokenised_here: bool  # whether this rank did


def prompt(example: dict[str, Any]) -> str:
    """Instruction, input where there is one, response."""
    parts = [f"### Instruction:\n{example['instruction']}"]
    if example.get("input"):
        parts.append(f"### Input:\n{example['input']}")
    parts.append(f"### Response:\n{example['output']}")
    return "\n\n".join(parts)


def load_examples(source: str, count: int, cache: Path) -> Any:
    """The first `count` rows of "shipped", a JSON file, a saved data set, or a name on the hub."""
    path = SHIPPED if source == "shipped" else Path(source)
    if path.is_file():
        rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))
    elif (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        rows = load_from_disk(str(path))
        rows = rows["train"] if isinstance(rows, DatasetDict) else rows
    else:
        rows = load_dataset(source, split="train")
    missing = {"instruction", "output"} - set(rows.column_names)
    if missing:
        raise ValueError(
            f"--dataset {source}: no column {', '.join(sorted(missing))} among "
            f"{', '.join(rows.column_names)}; expected instruction, output and, if any, input"
        )
    if len(rows) < count:
        raise ValueError(
            f"--dataset {source}: it has {len(rows)} examples, expected at least the {count} of "
            "--subset-size; choose a smaller one"
        )
    return rows.select(range(count))


def train_tokenizer(texts: list[str], size: int = TINY_VOCABULARY) -> Any:
    """A byte-level BPE of `size` tokens, the same for the same texts."""
    special = ["<unk>", "<s>", "</s>"]
    bpe = Tokenizer(models.BPE(unk_token=special[0]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=special,
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def tokenise(rows: Any, tokenizer: Any, seq_len: int) -> Any:
    """Every example as its prompt and an end mark, cut or padded to `seq_len` tokens."""
    if tokenizer.pad_token is None:  # Mistral has none
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"

    def encode(batch: dict[str, list[Any]], row: list[int]) -> dict[str, Any]:
        examples = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
        encoded = tokenizer(
            [prompt(example) + tokenizer.eos_token for example in examples],
            max_length=seq_len,
            truncation=True,
            padding="max_length",
        )
        return {"row": row} | {name: encoded[name] for name in ("input_ids", "attention_mask")}

    return rows.map(
        encode,
        batched=True,
        with_indices=True,
        remove_columns=rows.column_names,
        keep_in_memory=True,
    )


def digest(dataset: Any) -> str:
    """SHA-256 over every token and mask of the data set, in order."""
    found = hashlib.sha256()
    for batch in dataset.with_format("numpy").iter(batch_size=1024):
        for name in ("input_ids", "attention_mask"):
            found.update(batch[name].astype("int32").tobytes())
    return found.hexdigest()


def vocabulary_digest(tokenizer: Any) -> str:
    return hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def write(directory: Path, model: str, source: str, count: int, seq_len: int) -> None:
    """Load, tokenise and save: data set and tokenizer under `directory`. For one rank."""
    rows = load_examples(source, count, directory / "cache")
    if model == "tiny":
        tokenizer: Any = train_tokenizer([prompt(row) for row in rows])
    else:
        tokenizer = AutoTokenizer.from_pretrained(model)
        if not Path(model).is_dir():  # so that not all ranks download the weights at once
            snapshot_download(model, allow_patterns=["*.json", "model*.safetensors"])
    tokenise(rows, tokenizer, seq_len).save_to_disk(str(directory / "tokenised"))
    tokenizer.save_pretrained(str(directory / "tokenizer"))


def read(directory: Path, wait_s: float = VISIBLE_WITHIN_S) -> tuple[Any, Any]:
    """Data set and tokenizer that `write` saved, on this node or another.

    Another node's files may appear late: this waits, but not for ever.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            dataset = load_from_disk(str(directory / "tokenised"))
            return dataset, AutoTokenizer.from_pretrained(str(directory / "tokenizer"))
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{directory} could not be read within {wait_s:g} s of another rank having "
                    "written it; expected a directory that all nodes share"
                ) from error
            if directory.parent.is_dir():
                list(directory.parent.iterdir())  # makes a network file system look again
            time.sleep(0.5)


def prepare(directory: Path, model: str, source: str, count: int, seq_len: int) -> Prepared:
    """Rank 0 writes, and tells all ranks where, or why it could not; then all read.

    The others wait for that message. Unlike a file it cannot be a stale one, and it carries rank
    0's error, so that every rank ends at once and names the cause.
    """
    rank = dist.get_rank()
    report: list[Any] = [None, None, None]  # directory, rank that wrote, error
    if rank == 0:
        try:
            write(directory, model, source, count, seq_len)
            report = [str(directory), rank, None]
        except Exception as error:
            report[2] = f"{type(error).__name__}: {error}"
            dist.broadcast_object_list(report, src=0)
            raise
    dist.broadcast_object_list(report, src=0)
    written, writer, problem = report
    if problem is not None:
        raise RuntimeError(f"rank 0 could not prepare the data: {problem}")
    dataset, tokenizer = read(Path(written))
    return Prepared(
        dataset=dataset,
        tokenizer=tokenizer,
        digest=digest(dataset),
        tokenizer_digest=vocabulary_digest(tokenizer),
        tokenised_by=writer,
        tokenised_here=writer == rank,
    )
