"""Instruction data: what ships is correct and reproducible; what is loaded is checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("datasets")

from datasets import Dataset, disable_progress_bars

from smoke_tests import sft_data
from smoke_tests.data import make_instructions

Examples = list[dict[str, str]]
disable_progress_bars()


@pytest.fixture(scope="module")
def shipped() -> Examples:
    return [json.loads(line) for line in sft_data.SHIPPED.read_text().splitlines()]


def test_shipped_file_is_what_its_generator_writes() -> None:
    """Who runs make_instructions.py again gets the same file, byte for byte."""
    assert make_instructions.text(make_instructions.make()) == sft_data.SHIPPED.read_text()


def test_shipped_examples_serve_the_documented_subset_in_both_formats(shipped: Examples) -> None:
    """There are at least 2,048 different examples, half of them without an input."""
    assert len(shipped) >= 2048
    assert all(list(example) == ["instruction", "input", "output"] for example in shipped)
    assert all(example["instruction"] and example["output"] for example in shipped)
    assert len({(e["instruction"], e["input"]) for e in shipped}) == len(shipped)
    assert 0.4 < sum(not e["input"] for e in shipped) / len(shipped) < 0.6


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def quoted(text: str) -> list[str]:
    return re.findall(r"'(\w+)'", text)


def times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


def quotient(a: int, b: int) -> str:
    return f"{a // b}, remainder {a - a // b * b}"


def unit_factor(instruction: str) -> int:
    """What one of the larger unit is in the smaller, by a table of this test's own."""
    metric = {"kilometres": 1e5, "metres": 100, "centimetres": 1, "kilograms": 1000, "grams": 1}
    time = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    data = {"GiB": 2**30, "MiB": 2**20, "TiB": 2**40, "GB": 1e9, "MB": 1e6, "bytes": 8, "bits": 1}
    size = metric | time | data
    large, small = re.findall(r"\d+ (\w+) to (\w+)\.", instruction)[0]
    return int(size[large] / size[small])


# How the answer to an instruction that matches is worked out here, apart from the generator.
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
    """Answers that can be worked out again are what the examples say, for every such example."""
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


def test_prompt_has_a_section_for_an_input_only_where_there_is_one() -> None:
    """Instruction, input, response; or instruction and response where the input is empty."""
    example = {"instruction": "Sort.", "input": "b a", "output": "a b"}
    assert sft_data.prompt(example) == (
        "### Instruction:\nSort.\n\n### Input:\nb a\n\n### Response:\na b"
    )
    assert sft_data.prompt(example | {"input": ""}) == (
        "### Instruction:\nSort.\n\n### Response:\na b"
    )
    assert "Input" not in sft_data.prompt({"instruction": "Sort.", "output": "a b"})


def test_every_example_is_padded_or_cut_to_the_sequence_length(shipped: Examples) -> None:
    """Each row is seq_len tokens; what was not cut decodes to its prompt, an end mark, padding."""
    tokenizer = sft_data.train_tokenizer([sft_data.prompt(e) for e in shipped[:200]], size=512)
    rows = sft_data.tokenise(Dataset.from_list(shipped[:200]), tokenizer, seq_len=96)
    lengths = [sum(mask) for mask in rows["attention_mask"]]
    assert {len(row) for row in rows["input_ids"]} == {96}
    assert list(rows["row"]) == list(range(200))
    uncut = next(i for i, length in enumerate(lengths) if length < 96)
    text = tokenizer.decode(rows[uncut]["input_ids"])
    end = tokenizer.eos_token
    assert text == sft_data.prompt(shipped[uncut]) + end * (1 + 96 - lengths[uncut])
    cut = sft_data.tokenise(Dataset.from_list(shipped[:200]), tokenizer, seq_len=8)
    assert {sum(mask) for mask in cut["attention_mask"]} == {8}


def test_tokenizer_is_the_same_for_the_same_texts(shipped: Examples) -> None:
    """Training twice on the same texts gives the same vocabulary, of the size asked for."""
    texts = [sft_data.prompt(example) for example in shipped[:300]]
    first, second = (sft_data.train_tokenizer(texts, size=600) for _ in range(2))
    assert len(first) == 600
    assert sft_data.vocabulary_digest(first) == sft_data.vocabulary_digest(second)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """Data set and tokenizer come back from disk, and their digest tells a changed row."""
    sft_data.write(tmp_path, "tiny", "shipped", 64, 48)
    rows, tokenizer = sft_data.read(tmp_path, wait_s=0)
    assert len(rows) == 64
    assert tokenizer.pad_token == tokenizer.eos_token
    assert sft_data.digest(rows) == sft_data.digest(rows.select(range(64)))
    assert sft_data.digest(rows) != sft_data.digest(rows.select([*range(1, 64), 0]))


def test_data_that_never_appears_is_told_with_its_place(tmp_path: Path) -> None:
    """Reading ends with the directory and what was expected of it, and does not wait for ever."""
    with pytest.raises(RuntimeError, match=r"nowhere could not be read.*all nodes share"):
        sft_data.read(tmp_path / "nowhere", wait_s=0)


def json_file(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_examples_load_from_a_json_file_and_from_a_saved_data_set(tmp_path: Path) -> None:
    """--dataset takes paths of both kinds, and gives the first rows of each."""
    rows = [{"instruction": f"Say {n}.", "output": str(n)} for n in range(5)]
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    for source in (json_file(tmp_path / "rows.jsonl", rows), str(tmp_path / "saved")):
        loaded = sft_data.load_examples(source, 3, tmp_path / "cache")
        assert list(loaded["output"]) == ["0", "1", "2"]


def test_data_that_does_not_serve_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A missing column and too few rows are named, with what was expected."""
    wrong = json_file(tmp_path / "wrong.jsonl", [{"question": "?", "output": "!"}])
    with pytest.raises(ValueError, match="no column instruction among question, output; expected"):
        sft_data.load_examples(wrong, 1, tmp_path / "cache")
    few = json_file(tmp_path / "few.jsonl", [{"instruction": "?", "output": "!"}])
    with pytest.raises(ValueError, match="it has 1 examples, expected at least the 2 of --subset"):
        sft_data.load_examples(few, 2, tmp_path / "cache")
