"""Write instructions.jsonl: the instruction data that ships with the project.

    python smoke_tests/data/make_instructions.py

Every answer is computed or stated here, so the data belongs to the project and has its licence. The
same seed gives the same file, byte for byte, as a test checks. Half of the examples have an
`input`, as in the data set of the documents (alpaca-cleaned), so both prompt formats are trained.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

EXAMPLES = 2400
SEED = 20
PATH = Path(__file__).with_name("instructions.jsonl")

Example = tuple[str, str, str]  # instruction, input, output
Maker = Callable[[random.Random], Example]

WORDS = """
    adapter allocation amber anchor barrier basket batch bottle branch bridge broadcast bucket
    buffer cable candle canyon carbon checkpoint cluster compass copper cradle device driver
    eagle engine epoch fabric falcon feather fiber forest fragment gather glacier gradient
    granite harbor hazel island jacket journal kernel ladder lantern launch layer lemon light
    marble matrix meadow memory meter mirror module morning network node orange orchard packet
    partition pebble pepper pillar planet pocket queue rank reduce ribbon river rocket router
    saddle sample scatter scheduler shard silver socket spider stream summer switch tensor
    thread ticket timber token tunnel valley vector velvet violet walnut window winter worker
""".split()  # noqa: SIM905 - a hundred literals would read worse

FACTS = {
    "all-gather": "a collective after which every rank holds the parts of all ranks",
    "all-reduce": "a collective after which every rank holds the sum of all ranks' values",
    "all-to-all": "a collective in which every rank sends a different part to every other rank",
    "AdamW": "an optimizer that keeps two moments a parameter and decouples weight decay",
    "backpropagation": "computing gradients from the loss back to the first layer",
    "bandwidth": "the amount of data that a link moves in a second",
    "barrier": "a point that no rank passes before all ranks have reached it",
    "bfloat16": "a 16-bit number format with the exponent range of float32",
    "broadcast": "a collective that copies one rank's values to all ranks",
    "checkpoint": "a saved state from which training can go on",
    "collective": "an operation that all ranks of a group take part in",
    "data parallelism": "training copies of one model on different parts of the data",
    "driver": "the software through which the system talks to a device",
    "epoch": "one pass over the whole training set",
    "Ethernet": "a family of network standards for local networks",
    "global batch": "the number of samples that all ranks together use for one step",
    "global rank": "the number of a process among all processes of a job",
    "gloo": "a communication library that works on CPUs",
    "gradient": "the derivatives of the loss by the parameters",
    "gradient checkpointing": "computing activations again in the backward pass to save memory",
    "InfiniBand": "a network with low latency and remote memory access",
    "kernel": "a function that runs on a GPU, or the core of an operating system",
    "latency": "the time until the first byte of a message arrives",
    "learning rate": "the size of the steps that the optimizer takes",
    "local rank": "the number of a process on its own node",
    "login node": "the machine from which users submit jobs",
    "LoRA": "fine-tuning that trains small low-rank matrices beside frozen weights",
    "loss": "the number that training makes smaller",
    "NCCL": "NVIDIA's library for collectives between GPUs",
    "node": "one machine of a cluster",
    "NVLink": "a fast direct link between GPUs of one node",
    "optimizer state": "what the optimizer remembers of each parameter between steps",
    "overfitting": "learning the training data without learning what is general",
    "partition": "a named group of nodes that jobs can be submitted to",
    "PCIe": "the bus that connects GPUs and network cards to the processor",
    "pipeline parallelism": "placing the layers of one model on several devices in turn",
    "preemption": "stopping a running job to make room for a more important one",
    "prolog": "a script that the scheduler runs on a node before a job",
    "QOS": "a set of limits and priorities that a scheduler applies to a job",
    "queue": "the list of jobs that wait for resources",
    "RDMA": "access to another machine's memory without its processor",
    "reduce-scatter": "a collective after which every rank holds one part of the sum",
    "rendezvous": "the way in which the processes of a job find each other",
    "scheduler": "the program that decides when and where a job runs",
    "seed": "the number from which a random generator starts",
    "shard": "the part of the data or of a state that one rank holds",
    "shared file system": "storage that all nodes of a cluster see under the same path",
    "socket": "one end of a connection between two processes",
    "straggler": "a rank that is slower than the others and holds them up",
    "tensor parallelism": "splitting the matrices of one layer over several devices",
    "throughput": "the amount of work done in a second",
    "timeout": "the longest time that an operation may take",
    "token": "the unit of text that a language model reads",
    "tokenizer": "the program that turns text into tokens",
    "topology": "the way in which nodes and devices are connected",
    "warm-up": "the first steps, which are left out when speed is measured",
    "watchdog": "a thread that looks for operations that take too long",
    "weight decay": "pulling the weights a little towards zero at each step",
    "world size": "the number of processes in a job",
    "ZeRO": "splitting optimizer state, gradients or parameters over the ranks",
}


def words(rng: random.Random, least: int, most: int) -> list[str]:
    return rng.sample(WORDS, rng.randint(least, most))


def numbers(rng: random.Random, least: int, most: int) -> list[int]:
    return rng.sample(range(1, 1000), rng.randint(least, most))


def choose(rng: random.Random, *texts: str) -> str:
    return rng.choice(texts)


# --- without an input: the instruction is complete ---


def add(rng: random.Random) -> Example:
    a, b = rng.randint(2, 999), rng.randint(2, 999)
    asked = choose(rng, f"What is {a} + {b}?", f"Add {a} and {b}.", f"Compute {a} + {b}.")
    return asked, "", f"{a} + {b} = {a + b}."


def subtract(rng: random.Random) -> Example:
    b, a = sorted(rng.sample(range(2, 999), 2))
    asked = choose(rng, f"What is {a} - {b}?", f"Subtract {b} from {a}.")
    return asked, "", f"{a} - {b} = {a - b}."


def multiply(rng: random.Random) -> Example:
    a, b = rng.randint(2, 40), rng.randint(2, 40)
    asked = choose(rng, f"What is {a} x {b}?", f"Multiply {a} by {b}.")
    return asked, "", f"{a} x {b} = {a * b}."


def divide(rng: random.Random) -> Example:
    a, b = rng.randint(20, 500), rng.randint(3, 19)
    answer = f"{a} divided by {b} is {a // b}, remainder {a % b}."
    return f"Divide {a} by {b} and give the remainder.", "", answer


def even_or_odd(rng: random.Random) -> Example:
    n = rng.randint(10, 9999)
    return f"Is {n} even or odd?", "", f"{n} is {'odd' if n % 2 else 'even'}."


def count_letter(rng: random.Random) -> Example:
    word = rng.choice(WORDS)
    letter = rng.choice(word)
    count = word.count(letter)
    asked = f"How many times does the letter {letter!r} occur in the word {word!r}?"
    return asked, "", f"{count} time{'s' if count > 1 else ''}."


def word_length(rng: random.Random) -> Example:
    word = rng.choice(WORDS)
    return f"How many letters has the word {word!r}?", "", f"It has {len(word)} letters."


def spell_backwards(rng: random.Random) -> Example:
    word = rng.choice(WORDS)
    return f"Spell the word {word!r} backwards.", "", word[::-1]


def capitals(rng: random.Random) -> Example:
    word = rng.choice(WORDS)
    return f"Write the word {word!r} in capital letters.", "", word.upper()


def convert(rng: random.Random) -> Example:
    n = rng.randint(2, 400)
    large, small, factor = rng.choice(
        [
            ("kilometres", "metres", 1000),
            ("metres", "centimetres", 100),
            ("kilograms", "grams", 1000),
            ("hours", "minutes", 60),
            ("minutes", "seconds", 60),
            ("days", "hours", 24),
            ("GiB", "MiB", 1024),
            ("TiB", "GiB", 1024),
            ("GB", "MB", 1000),
            ("bytes", "bits", 8),
        ]
    )
    return f"Convert {n} {large} to {small}.", "", f"{n} {large} are {n * factor} {small}."


def world_size(rng: random.Random) -> Example:
    nodes, gpus = rng.randint(2, 64), rng.choice([1, 2, 4, 8])
    per_node = f"{gpus} process{'es' if gpus > 1 else ''}"
    asked = f"A job runs {per_node} on each of {nodes} nodes. What is its world size?"
    return asked, "", f"{nodes} x {gpus} = {nodes * gpus}."


def global_rank(rng: random.Random) -> Example:
    gpus, node = rng.choice([2, 4, 8]), rng.randint(0, 31)
    local = rng.randrange(gpus)
    asked = (
        f"With {gpus} processes on every node, which global rank has local rank {local} on node "
        f"{node}?"
    )
    return asked, "", f"{node} x {gpus} + {local} = {node * gpus + local}."


def global_batch(rng: random.Random) -> Example:
    ranks, batch = rng.choice([2, 4, 8, 16, 32, 64]), rng.randint(1, 64)
    asked = f"Each of {ranks} ranks uses a batch of {batch}. What is the global batch?"
    return asked, "", f"{ranks} x {batch} = {ranks * batch}."


def fact(rng: random.Random) -> Example:
    name, meaning = rng.choice(list(FACTS.items()))
    asked = choose(
        rng,
        f"What is meant by {name}?",
        f"Explain the term {name} in one sentence.",
        f"When a cluster trains a model, what is {name}?",
        f"Give a short definition of {name}.",
    )
    return asked, "", f"{name}: {meaning}."


# --- with an input: the instruction applies to it ---


def sort_words(rng: random.Random) -> Example:
    items = words(rng, 3, 7)
    return "Sort these words alphabetically.", ", ".join(items), ", ".join(sorted(items))


def sort_numbers(rng: random.Random) -> Example:
    items = numbers(rng, 3, 7)
    answer = " ".join(map(str, sorted(items)))
    return "Sort these numbers from small to large.", " ".join(map(str, items)), answer


def reverse_words(rng: random.Random) -> Example:
    items = words(rng, 3, 6)
    return "Reverse the order of the words.", " ".join(items), " ".join(reversed(items))


def count_words(rng: random.Random) -> Example:
    items = words(rng, 3, 11)
    return "Count the words.", " ".join(items), f"There are {len(items)} words."


def capitalise(rng: random.Random) -> Example:
    phrase = " ".join(words(rng, 2, 5))
    return "Capitalise the first letter of each word.", phrase, phrase.title()


def longest_word(rng: random.Random) -> Example:
    items = words(rng, 3, 6)
    while sum(len(word) == max(map(len, items)) for word in items) > 1:  # one answer only
        items = words(rng, 3, 6)
    return "Which of these words is the longest?", ", ".join(items), max(items, key=len)


def first_letters(rng: random.Random) -> Example:
    items = words(rng, 3, 6)
    return "Take the first letter of each word.", " ".join(items), "".join(w[0] for w in items)


def sum_numbers(rng: random.Random) -> Example:
    items = numbers(rng, 3, 5)
    listed = ", ".join(map(str, items))
    return "Add these numbers.", listed, f"{' + '.join(map(str, items))} = {sum(items)}."


def largest_number(rng: random.Random) -> Example:
    items = numbers(rng, 3, 8)
    return "Give the largest of these numbers.", ", ".join(map(str, items)), str(max(items))


def without_vowels(rng: random.Random) -> Example:
    phrase = " ".join(words(rng, 2, 4))
    return "Remove all vowels.", phrase, "".join(c for c in phrase if c not in "aeiou")


def remove_doubles(rng: random.Random) -> Example:
    items = words(rng, 3, 5)
    doubled = items + rng.sample(items, 2)
    rng.shuffle(doubled)
    answer = " ".join(dict.fromkeys(doubled))
    return "Remove words that occur twice, keeping the first.", " ".join(doubled), answer


def expand_nodes(rng: random.Random) -> Example:
    name, first = rng.choice(["node", "gpu", "worker"]), rng.randint(0, 40)
    numbers_ = range(first, first + rng.randint(2, 5))
    listed = f"{name}[{numbers_[0]:03d}-{numbers_[-1]:03d}]"
    return "List the nodes of this range.", listed, ", ".join(f"{name}{n:03d}" for n in numbers_)


def nodes_down(rng: random.Random) -> Example:
    states = {
        f"node{n:02d}": rng.choice(["idle", "down", "allocated"])
        for n in sorted(rng.sample(range(1, 60), rng.randint(3, 6)))
    }
    down = [name for name, state in states.items() if state == "down"]
    listed = "; ".join(f"{name} {state}" for name, state in states.items())
    return "Name the nodes that are down.", listed, ", ".join(down) or "No node is down."


def steps_per_s(rng: random.Random) -> Example:
    rate, seconds = rng.randint(2, 50), rng.randint(2, 60)
    asked = "How many steps were done in a second?"
    answer = f"{rate * seconds} / {seconds} = {rate} steps/s."
    return asked, f"{rate * seconds} steps in {seconds} seconds", answer


WITHOUT_INPUT: tuple[Maker, ...] = (
    add, subtract, multiply, divide, even_or_odd, count_letter, word_length, spell_backwards,
    capitals, convert, world_size, global_rank, global_batch, fact,
)  # fmt: skip
WITH_INPUT: tuple[Maker, ...] = (
    sort_words, sort_numbers, reverse_words, count_words, capitalise, longest_word, first_letters,
    sum_numbers, largest_number, without_vowels, remove_doubles, expand_nodes, nodes_down,
    steps_per_s,
)  # fmt: skip


def make(count: int = EXAMPLES, seed: int = SEED) -> list[dict[str, str]]:
    """`count` different examples, alternating between no input and an input."""
    rng = random.Random(seed)
    made: dict[tuple[str, str], Example] = {}
    while len(made) < count:
        maker = rng.choice(WITH_INPUT if len(made) % 2 else WITHOUT_INPUT)
        instruction, context, output = maker(rng)
        made.setdefault((instruction, context), (instruction, context, output))
    return [{"instruction": i, "input": c, "output": o} for i, c, o in made.values()]


def text(examples: list[dict[str, str]]) -> str:
    return "".join(json.dumps(example) + "\n" for example in examples)


if __name__ == "__main__":
    PATH.write_text(text(make()), encoding="utf-8")
