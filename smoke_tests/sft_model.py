"""The model of train_lora_sft.py: a frozen base with LoRA adapters, its loss, and its state."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict

from sft_data import Batch

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_base(args: argparse.Namespace, vocabulary: int) -> Any:
    """The model under the adapters, equal on all ranks: loaded, or a small one from the seed."""
    transformers.set_seed(args.seed)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    if args.model != "tiny":
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        return load(args.model, torch_dtype=dtype, use_cache=False)
    config = transformers.MistralConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    tiny: Any = transformers.MistralForCausalLM(config)
    return tiny.to(dtype)


def add_adapters(base: Any) -> Any:
    """LoRA on the seven projections; everything else is frozen."""
    config = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=PROJECTIONS, task_type="CAUSAL_LM"
    )
    return get_peft_model(base, config)


def list_trainable(model: Any) -> dict[str, Any]:
    """What the optimizer may change: adapter tensors by projection, and all other parameters."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    adapters = [name for name in names if ".lora_" in name]
    return {
        "trainable_adapters": {
            projection: sum(f".{projection}." in name for name in adapters)
            for projection in PROJECTIONS
        },
        "trainable_besides": sorted(set(names) - set(adapters)),
    }


def loss_of(model: Any, batch: Batch, precision: str) -> torch.Tensor:
    with torch.autocast(batch["labels"].device.type, torch.bfloat16, precision == "bf16"):
        loss: torch.Tensor = model(**batch).loss
    return loss


def evaluate(model: Any, batch: Batch, precision: str) -> float:
    """The loss without dropout. Leaves the model in training mode."""
    model.eval()
    with torch.no_grad():
        loss = float(loss_of(model, batch, precision))
    model.train()
    return loss


def checksums(model: Any, device: torch.device) -> dict[str, int]:
    """A 64-bit sum over the bits of each parameter. Each element has its own odd factor, so that
    changing any element changes the sum. Hashing 14 GB on the CPU would outlast the training."""
    integers, sums = {2: torch.int16, 4: torch.int32}, {}
    for name, parameter in model.named_parameters():
        bits = parameter.detach().flatten().view(integers[parameter.element_size()]).to(device)
        factors = torch.arange(len(bits), device=device) * 0x2545F4914F6CDD1D | 1
        sums[name] = int((bits * factors).sum())  # overflows and wraps around
    return sums


def state_of(model: Any, device: torch.device) -> dict[str, Any]:
    """The state that a new model must have after loading the checkpoint: adapters and base."""
    adapters = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {"adapters": dict(adapters), "parameters": checksums(model, device)}


def save(model: Any, path: Path) -> None:
    # Embeddings are not trained; without this argument PEFT would look the model up on the hub.
    model.save_pretrained(str(path), save_embedding_layers=False)


def load(path: Path, base: Any) -> Any:
    return PeftModel.from_pretrained(base, str(path), is_trainable=True)
