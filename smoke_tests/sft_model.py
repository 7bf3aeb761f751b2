"""The model of train_lora_sft.py and train_fsdp.py: a causal language model under LoRA adapters."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def build_base(args: argparse.Namespace, vocabulary: int) -> Any:
    """The model under the adapters, equal on all ranks: loaded, or a small one from the seed."""
    transformers.set_seed(args.seed)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    auto: Any = transformers.AutoModelForCausalLM
    if args.model != "tiny":
        return auto.from_pretrained(args.model, torch_dtype=dtype, use_cache=False)
    config = transformers.MistralConfig(vocab_size=vocabulary, use_cache=False, **TINY)
    return auto.from_config(config).to(dtype)


def add_adapters(base: Any) -> Any:
    """LoRA on the seven projections; everything else is frozen."""
    config = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=PROJECTIONS, task_type="CAUSAL_LM"
    )
    return get_peft_model(base, config)


def describe_trained(model: Any) -> dict[str, Any]:
    """Facts of what is trained, as the model itself shows it."""
    trainable, parameters = model.get_nb_trainable_parameters()
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    return {
        "parameters": parameters,
        "trainable_parameters": trainable,
        "trainable_share": trainable / parameters,
        "trainable_adapters": {p: sum(f".{p}.lora_" in n for n in names) for p in PROJECTIONS},
        "trainable_besides": sorted(name for name in names if ".lora_" not in name),
        "vocabulary": model.config.vocab_size,
        "layers": model.config.num_hidden_layers,
    }
