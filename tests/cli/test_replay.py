"""`hekla snapshot` and `hekla replay` on a real platform, and on files."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hekla.api.explanation import SNAPSHOT
from hekla.cli.main import main
from hekla.scheduler.snapshot import unpacked
from hekla.testing.platform import PlatformProcess, running_platform

PODS, GROUPS = "/api/v1/namespaces/default/pods", "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    """Two nodes with 4 GPUs; `old` holds one of them, and `train`, four pods of 2 GPUs, waits for both."""
    flags = ("--nodes", "2", "--gpus-per-node", "4")
    with running_platform(without=("workloads", "controlplane"), flags=flags) as running:
        make(running, "old", pods=1, gpus=4)
        until(lambda: running.ask("GET", f"{PODS}/old-0").document["spec"].get("nodeName"))
        make(running, "train", pods=4, gpus=2)
        until(lambda: [one["job"] for one in waiting(running) if one["pods"] == 4] == ["default/train"])
        yield running


def until(is_true: Any, within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < end, "it did not come true"  # each question is a connection: pause enough


def waiting(platform: PlatformProcess) -> list[Any]:
    """Who waits after the cycle of a snapshot."""
    found: list[Any] = platform.ask("GET", SNAPSHOT.path(name="volcano")).document["head"]["decisions"]["waiting"]
    return found


def make(platform: PlatformProcess, name: str, *, pods: int, gpus: int) -> None:
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": name},
        "spec": {"minMember": pods},
    }  # fmt: skip
    assert platform.ask("POST", GROUPS, group).status == 201
    amounts = {"nvidia.com/gpu": str(gpus)}
    env = [{"name": "TOKEN", "value": "swordfish"}]
    container = {"name": "main", "image": "trainer", "env": env, "resources": {"requests": amounts, "limits": amounts}}
    for number in range(pods):
        metadata = {
            "name": f"{name}-{number}",
            "annotations": {"scheduling.k8s.io/group-name": name},
            "labels": {"team": "bluebird"},
        }
        spec = {"runtimeClassName": "simulated", "schedulerName": "volcano", "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        answer = platform.ask("POST", PODS, body)
        assert answer.status == 201, answer.body


def taken(platform: PlatformProcess, file: Path, *words: str) -> Path:
    assert main(["snapshot", "-o", str(file), *words, "--kubeconfig", str(platform.kubeconfig)]) == 0
    return file


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["replay", *words]) == code
    return capsys.readouterr().out


def test_a_snapshot_of_the_running_platform_is_replayed_to_the_same(
    platform: PlatformProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = taken(platform, tmp_path / "monday.hekla")
    assert f"{file}: 2 nodes, 5 pods; 0 let in, 0 started, 1 job waits" in capsys.readouterr().out
    text = said(capsys, str(file))
    assert text.splitlines()[-1] == "the same as the live scheduler decided"
    assert "wait       default/train          default   0/2 nodes are available: 2 Insufficient nvidia.com/gpu." in text
    found = json.loads(said(capsys, str(file), "-o", "json"))
    assert found["isTheSame"] is True
    assert found["cycles"][0]["waiting"][0]["job"] == "default/train"


def test_decisions_that_are_not_the_same_are_shown_with_exit_code_1(
    platform: PlatformProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    from hekla.scheduler.decisions import Decisions
    from hekla.scheduler.snapshot import packed

    file = taken(platform, tmp_path / "monday.hekla")
    file.write_bytes(packed(replace(unpacked(file.read_bytes()), decisions=Decisions())))
    text = said(capsys, str(file), code=1)
    assert "not what the live scheduler decided:" in text
    assert "  default/train: waits (0/2 nodes are available: 2 Insufficient nvidia.com/gpu.); was: nothing" in text


def test_another_configuration_shows_what_would_be_otherwise(
    platform: PlatformProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = taken(platform, tmp_path / "monday.hekla"), tmp_path / "loose.conf"
    other.write_text('actions: "allocate"\ntiers:\n- plugins:\n  - name: predicates\n')
    text = said(capsys, str(file), "--with", str(other))
    assert f"with {other} it is otherwise:" in text
    assert "  default/train-0: starts on node-2; was: nothing" in text
    other.write_text("actions: what\n")
    assert main(["replay", str(file), "--with", str(other)]) == 1
    assert str(other) in capsys.readouterr().err


def test_what_pods_carry_stays_where_it_is(platform: PlatformProcess, tmp_path: Path) -> None:
    file = taken(platform, tmp_path / "monday.hekla")
    pods = [str(one) for one in unpacked(file.read_bytes()).objects]
    assert "swordfish" not in "".join(pods)


def test_without_the_schedulers_own_endpoint_its_objects_are_read(
    platform: PlatformProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hekla.api import explanation
    from hekla.api.meta import Kind, Scope

    nowhere = Kind(
        group="nobody.example.com", version="v1", kind="Snapshot", plural="snapshots", singular="snapshot",
        scope=Scope.CLUSTER,
    )  # fmt: skip
    monkeypatch.setattr(explanation, "SNAPSHOT", nowhere)
    file = taken(platform, tmp_path / "lists.hekla")
    assert "2 nodes, 5 pods; no decisions recorded" in capsys.readouterr().out
    text = said(capsys, str(file))
    assert "default/train" in text
    assert text.splitlines()[-1] == "the snapshot has no decisions to compare with"


def test_snapshots_are_for_those_who_may_get_them(platform: PlatformProcess) -> None:
    path = SNAPSHOT.path(name="volcano")
    assert platform.ask("GET", path, token="").status == 403
    assert platform.ask("GET", path, impersonate_user="ann").status == 403
    assert platform.ask("DELETE", path).status == 405
    assert platform.ask("GET", SNAPSHOT.path(name="other")).status == 404


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["none.hekla"], 1, "none.hekla cannot be read: No such file or directory"),
        (["pyproject.toml"], 1, "pyproject.toml: it is no snapshot, or a broken one"),
        (["/dev/zero"], 1, "/dev/zero: it is no snapshot, or a broken one"),
        (["x", "-o", "table"], 2, '-o "table" is not known; use json, yaml or wide'),
    ],
    ids=str,
)
def test_other_files_are_refused_with_a_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, sentence: str
) -> None:
    assert main(["replay", *words]) == code
    assert sentence in capsys.readouterr().err
