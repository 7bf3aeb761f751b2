"""Instruction data: the shipped file is correct and reproducible; loaded data are checked."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import make_instructions
from tests.support.needs import need_packages

need_packages("transformers", "datasets")
Examples = list[dict[str, str]]


@pytest.fixture(scope="module")
def sft_data() -> Any:
    """The module, which takes seconds to import."""
    from datasets import disable_progress_bars

    disable_progress_bars()
    return importlib.import_module("sft_data")


@pytest.fixture(scope="module")
def shipped(sft_data: Any) -> Examples:
    return [json.loads(line) for line in sft_data.SHIPPED.read_text().splitlines()]


def test_shipped_file_equals_the_generators_output(sft_data: Any) -> None:
    """Running make_instructions.py again gives the same file, byte for byte."""
    assert make_instructions.text(make_instructions.make()) == sft_data.SHIPPED.read_text()


def test_shipped_examples_suffice_for_the_documented_subset(shipped: Examples) -> None:
    """There are at least 2,048 different examples, half of them without an input."""
    assert len(shipped) >= 2048
    assert all(list(example) == ["instruction", "input", "output"] for example in shipped)
    assert all(example["instruction"] and example["output"] for example in shipped)
    assert len({(e["instruction"], e["input"]) for e in shipped}) == len(shipped)
    assert 0.4 < sum(not e["input"] for e in shipped) / len(shipped) < 0.6


def numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


def quoted(text: str) -> list[str]:
    return re.findall(r"'(\w+)'", text)


def times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


def quotient(a: int, b: int) -> str:
    return f"{a // b}, remainder {a - a // b * b}"


def unit_factor(instruction: str) -> int:
    """How many of the smaller unit make one of the larger, from a table of this test."""
    metric = {"kilometres": 1e5, "metres": 100, "centimetres": 1, "kilograms": 1000, "grams": 1}
    time = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    data = {"GiB": 2**30, "MiB": 2**20, "TiB": 2**40, "GB": 1e9, "MB": 1e6, "bytes": 8, "bits": 1}
    size = metric | time | data
    large, small = re.findall(r"\d+ (\w+) to (\w+)\.", instruction)[0]
    return int(size[large] / size[small])


# How to compute the answer to a matching instruction, independently of the generator.
ANSWERS: dict[str, Callable[[str, str], str]] = {
    r"(What is|Compute) \d+ \+|Add \d": lambda i, _: str(sum(numbers(i))),
    r"What is \d+ - ": lambda i, _: str(numbers(i)[0] - numbers(i)[1]),
    r"Subtract": lambda i, _: str(numbers(i)[1] - numbers(i)[0]),
    r"What is \d+ x |Multiply": lambda i, _: str(numbers(i)[0] * numbers(i)[1]),
    r"Divide": lambda i, _: quotient(*numbers(i)),
    r"Is \d+ even or odd": lambda i, _: "even" if i.split()[1][-1] in "02468" else "odd",
    r"How many times": lambda i, _: times(quoted(i)[1].count(quoted(i)[0])),
    r"How many letters": lambda i, _: f"{len(quoted(i)[0])} letters",
    r"Spell": lambda i, _: "".join(reversed(quoted(i)[0])),
    r"Write the word": lambda i, _: quoted(i)[0].upper(),
    r"Convert": lambda i, _: f"{numbers(i)[0] * unit_factor(i)} {i.split()[-1]}",
    r"A job runs": lambda i, _: str(numbers(i)[0] * numbers(i)[1]),
    r"With \d+ processes": lambda i, _: str(numbers(i)[0] * numbers(i)[2] + numbers(i)[1]),
    r"Each of": lambda i, _: str(numbers(i)[0] * numbers(i)[1]),
    r"Sort these words": lambda _, g: ", ".join(sorted(g.split(", "))),
    r"Sort these numbers": lambda _, g: " ".join(map(str, sorted(numbers(g)))),
    r"Reverse the order": lambda _, g: " ".join(g.split()[::-1]),
    r"Count the words": lambda _, g: f"{len(g.split())} words",
    r"Capitalise": lambda _, g: " ".join(word.capitalize() for word in g.split()),
    r"Which of these words": lambda _, g: sorted(g.split(", "), key=len)[-1],
    r"Take the first letter": lambda _, g: re.sub(r"\B\w|\s", "", g),
    r"Add these": lambda _, g: str(sum(numbers(g))),
    r"Give the largest": lambda _, g: str(sorted(numbers(g))[-1]),
    r"Remove all vowels": lambda _, g: re.sub(r"[aeiou]", "", g),
    r"How many steps": lambda _, g: f"{numbers(g)[0] // numbers(g)[1]} steps/s",
}


def test_answers_are_correct(shipped: Examples) -> None:
    """Every answer that can be computed again equals that of the example."""
    checked: list[str] = []
    for example in shipped:
        for pattern, answer in ANSWERS.items():
            if re.match(pattern, example["instruction"]):
                expected = answer(example["instruction"], example["input"])
                assert re.search(
                    rf"(^|\W){re.escape(expected.rstrip('.'))}\.?$", example["output"]
                ), example
                checked.append(pattern)
    assert set(checked) == set(ANSWERS)
    assert len(checked) > 0.7 * len(shipped)


def test_prompt_has_an_input_section_only_for_an_input(sft_data: Any) -> None:
    """Instruction, input, response; or instruction and response if the input is empty."""
    example = {"instruction": "Sort.", "input": "b a", "output": "a b"}
    assert sft_data.format_prompt(example) == (
        "### Instruction:\nSort.\n\n### Input:\nb a\n\n### Response:\na b"
    )
    assert sft_data.format_prompt(example | {"input": ""}) == (
        "### Instruction:\nSort.\n\n### Response:\na b"
    )
    assert "Input" not in sft_data.format_prompt({"instruction": "Sort.", "output": "a b"})


def test_every_example_is_padded_or_cut_to_the_sequence_length(
    sft_data: Any, shipped: Examples
) -> None:
    """Each row has seq_len tokens; an uncut row decodes to its prompt, an end token and padding;
    the labels are the tokens."""
    tokenizer = sft_data.load_tokenizer("tiny")
    texts = [sft_data.format_prompt(example) for example in shipped[:50]]
    batch = sft_data.tokenise(texts, tokenizer, seq_len=96)
    assert {name: tuple(column.shape) for name, column in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), (50, 96)
    )
    assert batch["labels"].equal(batch["input_ids"])
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    uncut = next(i for i, length in enumerate(lengths) if length < 96)
    text = tokenizer.decode(batch["input_ids"][uncut])
    padding = tokenizer.pad_token * (96 - lengths[uncut])
    assert text == texts[uncut] + tokenizer.eos_token + padding
    cut = sft_data.tokenise(texts, tokenizer, seq_len=8)
    assert cut["attention_mask"].sum(dim=1).tolist() == [8] * 50


def test_examples_load_from_a_directory_of_data_files(sft_data: Any, tmp_path: Path) -> None:
    """--dataset accepts a directory as `datasets` does; the first rows of its files are used."""
    rows = [{"instruction": f"Say {n}.", "output": str(n)} for n in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sft_data.load_examples(str(tmp_path), 3) == rows[:3]


def test_too_few_examples_are_refused_with_their_number(sft_data: Any) -> None:
    """A subset is never silently smaller than requested."""
    with pytest.raises(IndexError, match="out of range for dataset of size 2400"):
        sft_data.load_examples("shipped", 2401)
