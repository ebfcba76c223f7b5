from pathlib import Path

import pytest

from hekla.node.engines import EngineChoice, adapted, entry_point, has_vllm, is_stand_in

VLLM = ("python3", "-m", "vllm.entrypoints.openai.api_server")
IP = "127.64.0.9"


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ((*VLLM, "--model", "m"), ("hekla", "engine", "--model", "m", "--host", IP)),
        ((*VLLM, "--model", "m", "--host", "::"), ("hekla", "engine", "--model", "m", "--host", "::")),
        (("vllm", "serve", "m", "--port", "1"), ("hekla", "engine", "--model", "m", "--port", "1", "--host", IP)),
        (
            ("bash", "-c", "pip install nixl && python3 -m vllm.entrypoints.openai.api_server --model 'a b'"),
            ("bash", "-c", f"exec hekla engine --model 'a b' --host {IP}"),
        ),
        (("bash", "-c", "echo vllm"), ("bash", "-c", "echo vllm")),
        (("sleep", "1"), ("sleep", "1")),
    ],
)
def test_without_vllm_the_stand_in_takes_its_flags(argv: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert adapted(argv, IP, is_installed=False) == wanted
    assert is_stand_in(wanted) == (wanted != argv)


def test_a_real_engine_listens_on_its_pods_own_address() -> None:
    assert adapted((*VLLM, "--model", "m"), IP, is_installed=True) == (*VLLM, "--model", "m", "--host", IP)
    assert adapted(("vllm", "serve", "m"), IP, is_installed=True) == ("vllm", "serve", "m", "--host", IP)
    assert adapted((*VLLM, "--model", "m"), "", is_installed=True) == (*VLLM, "--model", "m")
    script = "pip install nixl && python3 -m vllm.entrypoints.openai.api_server --model m"
    assert adapted(("bash", "-c", script), IP, is_installed=True) == ("bash", "-c", f"{script} --host {IP}")


def test_the_side_car_asks_its_own_pods_engine() -> None:
    argv = ("python3", "-m", "hekla.serving.runtime", "--engine-base-url", "http://localhost:8000")
    assert adapted(argv, IP, is_installed=False)[4:] == (f"http://{IP}:8000", "--host", IP)


def test_images_that_help_engines_are_known_whatever_their_registry() -> None:
    runtime = ("python3", "-m", "hekla.serving.runtime")
    assert entry_point("kthena/runtime:latest", is_installed=True) == runtime
    assert entry_point("ghcr.io/x/kthena/runtime:v1", is_installed=False) == runtime
    assert entry_point("kthena/downloader:latest", is_installed=True) == ("python3", "-m", "hekla.serving.downloader")
    assert entry_point("kthena/downloader:latest", is_installed=False)[0] == "echo"
    assert entry_point("python:3.12", is_installed=True) == ()


@pytest.mark.parametrize(
    "argv",
    [(*VLLM, "--model", "m"), ("vllm", "serve", "m"), ("bash", "-c", "pip install nixl && python3 -m " + VLLM[2])],
)
def test_an_engine_of_another_environment_is_found_before_ours(argv: tuple[str, ...]) -> None:
    choice = EngineChoice.of(Path("/opt/vllm/bin/python3"), ["vllm/vllm-openai:v0.11.0"])
    assert choice.is_real
    assert choice.environment(argv, {"PATH": "/bin"}) == {"PATH": "/opt/vllm/bin:/bin"}
    assert choice.environment(argv, {})["PATH"].startswith("/opt/vllm/bin:/")
    assert choice.environment(("python3", "train.py"), {}) == {}, "what starts no engine finds what it found before"


def test_the_engine_simulator_can_be_asked_for_where_vllm_is() -> None:
    choice = EngineChoice.of(Path("/opt/vllm/bin/python3"), ["kthena/runtime", "hekla/engine:latest"])
    assert not choice.is_real
    assert "hekla/engine" in choice.sentence


def test_nobody_is_sent_to_another_environment_unasked() -> None:
    choice = EngineChoice.of(None, ["vllm/vllm-openai:v0.11.0"])
    assert choice.is_real == has_vllm()
    assert choice.environment((*VLLM, "--model", "m"), {}) == {}
