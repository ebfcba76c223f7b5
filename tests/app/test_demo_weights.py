import json
from pathlib import Path

from hekla.app.demo_weights import SPECIAL, write_model


def test_the_demos_model_knows_every_byte_and_counts_its_tokens_once(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    config, tokenizer = (
        json.loads((tmp_path / "tiny" / f"{name}.json").read_text()) for name in ("config", "tokenizer")
    )
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert sum(len(token) == 1 for token in vocabulary) == 256
    assert [token["content"] for token in tokenizer["added_tokens"]] == list(SPECIAL)
    assert "Ġfog" in vocabulary
    assert config["hidden_size"] % config["num_attention_heads"] == 0
