"""Write a LoRA adapter of rank 8 for the tiny model: make_tiny_lora.py DIR. Its weights are small and random, and not zero."""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

directory = pathlib.Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)
torch.manual_seed(1)
sizes = {"q_proj": (128, 128), "v_proj": (128, 64)}
tensors = {}
for layer in range(2):
    for name, (inward, outward) in sizes.items():
        prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(8, inward) * 0.1
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(outward, 8) * 0.1
save_file(tensors, directory / "adapter_model.safetensors")
config = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": sorted(sizes),
    "base_model_name_or_path": "tiny",
    "inference_mode": True,
}
(directory / "adapter_config.json").write_text(json.dumps(config))
