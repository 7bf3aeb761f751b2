"""The model of train_lora_sft.py: a frozen base with LoRA adapters, and its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from peft import LoraConfig, PeftModel, get_peft_model

from sft_data import Batch

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def download(model: str) -> None:
    """Fetch a model by its name on the hub into the cache, which all ranks load it from."""
    if model != "tiny" and not Path(model).is_dir():
        snapshot_download(model, allow_patterns=["*.json", "model*.safetensors"])


def build_base(model: str, vocabulary: int, precision: str, seed: int) -> Any:
    """The model under the adapters, equal on all ranks: loaded, or a small one from the seed."""
    transformers.set_seed(seed)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if model != "tiny":
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        return load(model, torch_dtype=dtype, use_cache=False)
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
    counts = {each: sum(f".{each}." in name for name in adapters) for each in PROJECTIONS}
    others = sorted(set(names) - set(adapters))
    return {"trainable_adapters": counts, "trainable_besides": others}


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


def save(model: Any, path: Path) -> None:
    # Embeddings are not trained; without this argument PEFT would look the model up on the hub.
    model.save_pretrained(str(path), save_embedding_layers=False)


def load(path: Path, base: Any) -> Any:
    return PeftModel.from_pretrained(base, str(path), is_trainable=True)
