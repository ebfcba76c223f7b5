"""The demo's own model: a Llama of two layers without weights, so that a real vLLM has something to serve and nothing is fetched.

Its tokenizer knows every byte, and the words of the engine simulator: what it answers is noise, but noise of words. vLLM makes the
weights up (`--load-format dummy`); everything else is as with a model from a hub.
"""

import json
from pathlib import Path
from typing import Any, Final

from hekla.simulation.engine.tokens import WORDS

SPECIAL: Final = ("<s>", "</s>", "<unk>")
CHAT: Final = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
CONTEXT: Final = 2048
PAIRED: Final = 64


def write_model(directory: Path) -> None:
    """Put the model's files there."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary()
    files = {
        "config.json": _config(len(vocabulary)),
        "tokenizer.json": _tokenizer(vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
            "chat_template": CHAT,
        },
    }  # fmt: skip
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, ensure_ascii=False))


def _vocabulary() -> dict[str, int]:
    """Special tokens, all bytes, words with the blank before them, and pairs of words, so that most tokens are words."""
    words = [f"Ġ{word.decode().strip()}" for word in WORDS]
    pairs = [first + second for first in words for second in words[:PAIRED]]
    spelled = dict.fromkeys([*SPECIAL, *_letters().values(), *words, *pairs])
    return {token: number for number, token in enumerate(spelled)}


def _letters() -> dict[int, str]:
    """How byte-level tokenizers (GPT-2's and all since) write each byte: as itself where that can be seen, else as a letter from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


def _tokenizer(vocabulary: dict[str, int]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bpe: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocabulary, "merges": [],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": number, "content": token, **plain} for number, token in enumerate(SPECIAL)],
        "pre_tokenizer": byte_level, "decoder": byte_level, "model": bpe,
    }  # fmt: skip


def _config(tokens: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": tokens, "hidden_size": 128,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32", "use_cache": True,
    }  # fmt: skip
