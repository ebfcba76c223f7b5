"""`hekla engine`: vLLM's command line, as it is read."""

import pytest

from hekla.cli.commands import engine
from hekla.cli.main import main


@pytest.fixture
def served(monkeypatch):
    found = []
    monkeypatch.setattr(engine, "_serve", found.append)
    return found


def test_several_words_stand_behind_one_flag_as_for_vllm(served):
    adapters = ["--lora-modules", "sql=/a", '{"name": "poems", "path": "/b", "base_model_name": "m"}']
    words = ["engine", "--served-model-name", "m", "n", "--enable-lora", *adapters, "--seed", "3", "--model", "big"]
    assert main(words) == 0
    [settings] = served
    assert settings.names == ("m", "n")
    assert settings.lora_modules == (("sql", "/a"), ("poems", "/b"))
    assert (settings.model, settings.seed) == ("big", 3)


def test_a_model_may_stand_first_as_behind_vllm_serve(served):
    assert main(["engine", "big", "--served-model-name", "m"]) == 0
    assert (served[0].model, served[0].names) == ("big", ("m",))


@pytest.mark.parametrize("said", ["sql", '{"name": "sql"}', '[{"name": "sql", "path": "/a"}]'])
def test_an_adapter_without_name_or_path_is_told_by_its_words(said, served, capsys):
    assert main(["engine", "--enable-lora", "--lora-modules", said]) == 2
    assert (
        f"--lora-modules '{said}' is neither NAME=PATH nor an object of JSON with name and path"
        in capsys.readouterr().err
    )
    assert not served


def test_a_port_that_is_none_is_refused_and_not_taken_modulo_65536(served, capsys):
    assert main(["engine", "--port", "99999"]) == 2
    assert "--port is 99999; a port lies between 0 (any) and 65535" in capsys.readouterr().err
    assert not served
