"""The model of train_lora_sft.py: a frozen base, LoRA adapters, and checksums of both."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM, set_seed

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_base(name: str, vocabulary: int, dtype: torch.dtype, seed: int) -> Any:
    """The model under the adapters, equal on all ranks: loaded, or small and from the seed."""
    set_seed(seed)
    if name == "tiny":
        config = MistralConfig(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
        tiny: Any = MistralForCausalLM(config)
        return tiny.to(dtype)
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    dtype_argument = "dtype" if version >= (4, 56) else "torch_dtype"
    return AutoModelForCausalLM.from_pretrained(name, use_cache=False, **{dtype_argument: dtype})


def add_adapters(base: Any, r: int = 8, alpha: int = 16, dropout: float = 0.05) -> Any:
    """LoRA on the seven projections; everything else is frozen."""
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=PROJECTIONS,
        bias="none",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, config)


def checksum(tensor: torch.Tensor, device: torch.device, chunk: int = 2**24) -> int:
    """A 64-bit sum over a tensor's bits, taken on `device`.

    Each element counts with an odd factor of its own, so no change of one element escapes it;
    hashing 14 GB of weights on the CPU would take longer than the training.
    """
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(-1).view(integers[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=device)
    for start in range(0, bits.numel(), chunk):
        part = bits[start : start + chunk].to(device, torch.int64)
        place = torch.arange(start, start + part.numel(), device=device)
        total += (part * (place * 0x2545F4914F6CDD1D | 1)).sum()  # overflows, and wraps round
    return int(total)


def checksums(model: Any, device: torch.device, trainable: bool) -> dict[str, int]:
    """By name, of the parameters that are trained (the adapters), or of those that are not."""
    return {
        name: checksum(parameter, device)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad == trainable
    }


def digest(sums: dict[str, int]) -> str:
    """One short text for many checksums, to be compared between ranks."""
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def state(model: Any, device: torch.device) -> dict[str, Any]:
    """What a model built anew must have again: the adapters, and the base they belong to."""
    return {
        "adapters": dict(get_peft_model_state_dict(model, save_embedding_layers=False)),
        "base": checksums(model, device, trainable=False),
    }


def loss_of(model: Any, batch: dict[str, torch.Tensor], bf16: bool) -> float:
    """The loss of one batch without dropout. Leaves the model in training mode."""
    model.eval()
    device = batch["input_ids"].device.type
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=bf16):
        loss = float(model(**batch).loss)
    model.train()
    return loss
