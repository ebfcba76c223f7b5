import pytest

from hekla.node.engines import adapted, entry_point, is_stand_in

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
