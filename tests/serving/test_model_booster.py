"""ModelBoosters: what they become, and that what is there is left alone. Kthena: ModelCR, ModelCRDisaggregated, TestBuildModelServing*."""

import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from hekla.api.kthena import AutoscalingPolicy, ModelBooster, ModelRoute, ModelServer, ModelServing, labels
from hekla.api.meta import Document
from hekla.kube.commands import Create
from hekla.serving.model_booster import reconcile_model_booster, tell_refusal
from hekla.serving.model_booster_pods import Images, flags, images_of
from hekla.serving.reconcilers import reconcilers
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.serving_world import NAMESPACE, NOW
from hekla.testing.world import FakeWorld

GPU = {"limits": {"nvidia.com/gpu": "1"}}


def booster(*, annotations: dict[str, str] | None = None, name: str = "", **backend: object) -> Document:
    worker = {"type": "server", "image": "vllm:1", "replicas": 1, "pods": 1, "resources": GPU}
    whole = {
        "name": "main",
        "type": "vLLM",
        "modelURI": "hf://Qwen/Qwen3-8B",
        "cacheURI": "hostpath:///var/cache",
        "replicas": 2,
        "workers": [worker],
        **backend,
    }
    return {
        "apiVersion": ModelBooster.kind_info.api_version,
        "kind": "ModelBooster",
        "metadata": {"name": "qwen", "namespace": NAMESPACE, "uid": "uid-qwen", "annotations": annotations or {}},
        "spec": {"backend": whole, **({"name": name} if name else {})},
    }


def disaggregated(**more: object) -> Document:
    def worker(kind: str, role: str) -> Document:
        transfer = msgspec.json.encode({"kv_connector": "NixlConnector", "kv_role": role}).decode()
        return {
            "type": kind,
            "image": "vllm:1",
            "replicas": 2,
            "resources": GPU,
            "config": {"kv-transfer-config": transfer},
        }

    workers = [worker("prefill", "kv_producer"), worker("decode", "kv_consumer")]
    return booster(type="vLLMDisaggregated", workers=workers, **more)  # type: ignore[arg-type]


def settled(document: Document) -> FakeWorld:
    world = FakeWorld(document)
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    return world


def spec_of(world: FakeWorld, kind: type, name: str = "qwen-main") -> Document:
    found: Document = world.document(kind, NAMESPACE, name)["spec"]
    return found


def entry(world: FakeWorld, role: int = 0) -> Document:
    found: Document = spec_of(world, ModelServing)["template"]["roles"][role]["entryTemplate"]["spec"]
    return found


def container(spec: Document, name: str) -> Document:
    return next(one for one in spec["containers"] if one["name"] == name)


def condition(world: FakeWorld, kind: str) -> tuple[str, str]:
    told = world.document(ModelBooster, NAMESPACE, "qwen")["status"]["conditions"]
    return next(((one["status"], one["message"]) for one in told if one["type"] == kind), ("", ""))


def test_a_booster_becomes_a_serving_a_server_and_a_route() -> None:
    world = settled(booster(name="qwen3"))
    serving = spec_of(world, ModelServing)
    assert serving["replicas"] == 2
    assert serving["template"]["gangPolicy"] == {"minRoleReplicas": {"leader": 1}}
    assert serving["template"]["restartGracePeriodSeconds"] == 60
    server = spec_of(world, ModelServer)
    assert server["workloadSelector"] == {"matchLabels": {labels.MODEL_UID: "uid-qwen"}}
    assert server["workloadPort"] == {"port": 8000}
    assert (server["model"], server["inferenceEngine"]) == ("qwen", "vLLM")
    route = spec_of(world, ModelRoute, "qwen")
    assert route["modelName"] == "qwen3"
    assert route["rules"] == [{"name": "default", "targetModels": [{"modelServerName": "qwen-main"}]}]
    pod_labels = serving["template"]["roles"][0]["entryTemplate"]["metadata"]["labels"]
    assert pod_labels[labels.MODEL_UID] == "uid-qwen"


def test_a_pod_fetches_the_model_then_serves_it() -> None:
    spec = entry(settled(booster()))
    [downloader] = spec["initContainers"]
    assert downloader["name"] == "qwen-model-downloader"
    assert downloader["args"][:3] == ["--source", "hf://Qwen/Qwen3-8B", "--output-dir"]
    model = downloader["args"][3]
    assert re.fullmatch("/var/cache/[0-9a-f]{32}", model)
    engine = container(spec, "engine")
    start = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    assert engine["command"] == [*start, "--served-model-name", "qwen"]
    assert engine["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert "vllm:num_requests_(running|waiting)" in engine["lifecycle"]["preStop"]["exec"]["command"][2]
    runtime = container(spec, "runtime")
    assert runtime["ports"] == [{"containerPort": 8100}]
    assert runtime["args"][2:6] == ["--engine", "vllm", "--engine-base-url", "http://localhost:8000"]
    assert {one["name"]: list(one)[1] for one in spec["volumes"]} == {"main-weights": "hostPath", "dshm": "emptyDir"}


IDLE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 0.0
vllm:num_requests_running{engine="1",model_name="a b"} 0.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 0.0
vllm:num_requests_waiting_by_reason{reason="deferred"} 1.0
"""


@pytest.mark.parametrize(
    ("page", "waits"),
    [
        (IDLE, False),
        (IDLE.replace('"1",model_name="a b"} 0.0', '"1",model_name="a b"} 2.0'), True),
        (IDLE.replace('waiting{engine="0",model_name="a b"} 0.0', 'waiting{engine="0",model_name="a b"} 1.0'), True),
        ("other 1\n", False),
        ("", False),
    ],
)
def test_an_engine_of_several_ranks_that_has_nothing_left_ends(page: str, waits: bool, tmp_path: Path) -> None:
    (tmp_path / "page").write_text(page)
    for name, script in (("curl", f"cat {tmp_path}/page"), ("sleep", "kill $PPID")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    command = container(entry(settled(booster())), "engine")["lifecycle"]["preStop"]["exec"]["command"]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert (done.returncode != 0) == waits, "a script that waits is ended by the test's own sleep"


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (None, []),
        ({"model": "deepseek", "dtype": "float16"}, ["--dtype", "float16", "--model", "deepseek"]),
        ({"max_model_len": "4096"}, ["--max-model-len", "4096"]),
        ({"trust-remote-code": "", "enable-lora": True}, ["--enable-lora", "--trust-remote-code"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        (
            {"gpu-memory-utilization": 0.9, "block-size": 128.0},
            ["--block-size", "128", "--gpu-memory-utilization", "0.9"],
        ),
        (
            {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}},
            ["--speculative-config", '{"method":"ngram","num_speculative_tokens":4}'],
        ),
        (
            {"lora-modules": ["a=/a", {"name": "b", "path": "/b"}], "served_model_name": ["x", "y"]},
            ["--lora-modules", "a=/a", '{"name":"b","path":"/b"}', "--served-model-name", "x", "y"],
        ),
        ({"lora-modules": [], "allowed-origins": ["*"]}, ["--allowed-origins", '["*"]']),
    ],
)
def test_configuration_becomes_flags(config: Document | None, wanted: list[str]) -> None:
    assert flags(config) == wanted


def test_the_port_of_the_configuration_is_the_port_of_all() -> None:
    worker = {"type": "server", "image": "vllm:1", "replicas": 1, "config": {"port": 9000, "served-model-name": "q"}}
    world = settled(booster(workers=[worker]))
    assert spec_of(world, ModelServer)["workloadPort"] == {"port": 9000}
    assert spec_of(world, ModelServer)["model"] == "q"
    assert container(entry(world), "engine")["readinessProbe"]["httpGet"]["port"] == 9000


def test_several_nodes_meet_by_ray_and_json_survives_the_shell() -> None:
    worker = {
        "type": "server", "image": "vllm:1", "replicas": 1, "pods": 2, "resources": GPU,
        "config": {"speculative-config": {"method": "ngram"}},
    }  # fmt: skip
    world = settled(booster(workers=[worker]))
    role = spec_of(world, ModelServing)["template"]["roles"][0]
    assert role["workerReplicas"] == 1
    shell, flag, script = container(entry(world), "engine")["command"]
    assert (shell, flag) == ("bash", "-c")
    assert "leader --ray_cluster_size=2 --num-gpus=1 && python3 -m vllm" in script
    assert """--speculative-config '{"method":"ngram"}'""" in script
    assert script.endswith("--distributed_executor_backend ray")
    [worker_container] = role["workerTemplate"]["spec"]["containers"]
    assert worker_container["name"] == "main-vllm-worker"
    assert worker_container["command"][2].endswith("worker --ray_address=$(ENTRY_ADDRESS)")


def test_prefill_and_decode_are_roles_that_the_router_pairs() -> None:
    world = settled(disaggregated())
    roles = spec_of(world, ModelServing)["template"]["roles"]
    assert [(one["name"], one["replicas"]) for one in roles] == [("prefill", 2), ("decode", 2)]
    server = spec_of(world, ModelServer)
    assert server["kvConnector"] == {"type": "nixl"}
    assert server["workloadSelector"]["pdGroup"] == {
        "groupKey": labels.GROUP_NAME,
        "prefillLabels": {labels.ROLE: "prefill"},
        "decodeLabels": {labels.ROLE: "decode"},
    }
    command = container(entry(world), "vllm")["command"]
    assert command[2].startswith(
        "PIP_DISABLE_PIP_VERSION_CHECK=1 pip install -U --no-cache-dir nixl && python3 -m vllm"
    )
    assert """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'""" in command[2]


def test_dependencies_are_not_installed_where_the_image_has_them() -> None:
    world = settled(disaggregated(env=[{"name": "KTHENA_SKIP_ENGINE_DEPENDENCY_INSTALL", "value": "true"}]))
    assert container(entry(world), "vllm")["command"][0] == "python3"


@pytest.mark.parametrize(
    ("cache", "source", "volume", "mount", "model"),
    [
        ("", "hf://m", {"emptyDir": {}}, "/model-cache", "/model-cache/"),
        ("pvc://store", "hf://m", {"persistentVolumeClaim": {"claimName": "store"}}, "/store", "/store/"),
        ("pvc://store", "pvc://store/m/v1", {"persistentVolumeClaim": {"claimName": "store"}}, "/store", "/store/m/v1"),
    ],
)
def test_where_a_model_is_kept(cache: str, source: str, volume: Document, mount: str, model: str) -> None:
    spec = entry(settled(booster(cacheURI=cache, modelURI=source)))
    assert {**spec["volumes"][0], "name": ""} == {**volume, "name": ""}
    assert container(spec, "engine")["volumeMounts"][0]["mountPath"] == mount
    assert container(spec, "engine")["command"][4].startswith(model)


def test_a_booster_is_active_when_its_serving_is_available() -> None:
    world = settled(booster())
    assert condition(world, "Initialized") == ("True", "ModelBooster initialized")
    assert condition(world, "Active") == ("False", "ModelBooster not ready yet")
    why = "Some groups is progressing: [0]; pod p: container engine ended with exit code 1 (Error)"
    progressing = {"type": "Progressing", "status": "True", "message": why}
    world.change(ModelServing, NAMESPACE, "qwen-main", {"status": {"conditions": [progressing]}})
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    assert condition(world, "Active") == ("False", f"ModelBooster not ready yet; ModelServing qwen-main: {why}")
    available = {"observedGeneration": 1, "conditions": [{"type": "Available", "status": "True"}]}
    world.change(ModelServing, NAMESPACE, "qwen-main", {"status": available})
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    assert condition(world, "Active") == ("True", "ModelBooster is ready")


def test_a_booster_whose_engines_are_simulated_says_that_nobody_looked_for_its_model() -> None:
    """A bucket that does not exist was Active like any other."""
    world = settled(booster(modelURI="s3://gone/model"))
    serving = world.get(ModelServing, NAMESPACE, "qwen-main")
    assert serving is not None
    owner = {"apiVersion": ModelServing.kind_info.api_version, "kind": "ModelServing", "name": "qwen-main",
             "uid": serving.metadata.uid, "controller": True}  # fmt: skip
    stands_in = {"type": labels.ENGINE_STAND_IN, "status": "True", "message": "vllm is not installed on this node"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": NAMESPACE, "ownerReferences": [owner]},
           "spec": {"containers": [{"name": "e", "image": "i"}]}, "status": {"conditions": [stands_in]}}  # fmt: skip
    world.put(pod)
    available = {"observedGeneration": 1, "conditions": [{"type": "Available", "status": "True"}]}
    world.change(ModelServing, NAMESPACE, "qwen-main", {"status": available})
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    assert condition(world, "Active") == ("True", "ModelBooster is ready")
    assert condition(world, "Fetched") == (
        "False",
        "nothing was fetched from s3://gone/model, and whether it is there was not looked at: vllm is not installed on this node",
    )
    world.put({**pod, "status": {}})
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    assert condition(world, "Fetched") == ("True", "engines have what is at s3://gone/model")


def test_a_child_that_the_api_server_refuses_is_told_of() -> None:
    world = FakeWorld(booster())
    full = 'modelservings "qwen-main" is forbidden: exceeded quota: q, requested: N, used: N, limited: N'
    for why in (full, full.replace("N", "1")):
        one = world.get(ModelBooster, NAMESPACE, "qwen")
        assert one is not None
        world.execute(list(tell_refusal(one, Create(ModelServing, {}), why, world, NOW)))
        assert condition(world, "Active") == (
            "False", f"ModelBooster not ready yet; the API server refuses what it needs: {full}",
        )  # fmt: skip
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    assert "refuses" not in condition(world, "Active")[1]


def test_arguments_that_contradict_each_other_are_told_and_mended() -> None:
    document = disaggregated()
    good = document["spec"]["backend"]["workers"][1]["config"]
    document["spec"]["backend"]["workers"][1]["config"] = {"port": 9}
    world = settled(document)
    status, message = condition(world, "Failed")
    assert (status, message) == ("True", "workers use different engine ports: 8000 and 9")
    assert world.list(ModelServing, NAMESPACE) == []
    workers = [document["spec"]["backend"]["workers"][0], {**document["spec"]["backend"]["workers"][1], "config": good}]
    world.change(ModelBooster, NAMESPACE, "qwen", {"spec": {"backend": {"workers": workers}}})
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    assert condition(world, "Failed")[0] == "False"
    assert len(world.list(ModelServing, NAMESPACE)) == 1


def bump(world: FakeWorld, patch: Document) -> None:
    generation = world.document(ModelBooster, NAMESPACE, "qwen")["metadata"]["generation"] + 1
    world.change(ModelBooster, NAMESPACE, "qwen", {"metadata": {"generation": generation}, **patch})
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)


def test_images_of_the_environment_run_around_the_engine() -> None:
    """Kthena reads them from a ConfigMap with these keys, which a Deployment hands on by envFrom."""
    images = images_of({"model_serving_downloader_image": "mirror/downloader:1", "model_serving_runtime_image": " "})
    assert images == Images(downloader="mirror/downloader:1")
    world = FakeWorld(booster())
    [one] = world.list(ModelBooster)
    chosen = next(it for it in reconcilers(images) if it.kind is ModelBooster)
    world.execute(chosen.decide(one, world, NOW))
    spec = entry(world)
    assert [it["image"] for it in spec["initContainers"]] == ["mirror/downloader:1"]
    assert container(spec, "runtime")["image"] == "kthena/runtime:latest"


def test_a_change_reaches_the_children() -> None:
    world = settled(booster())
    bump(world, {"spec": {"backend": {"replicas": 5}, "name": "other"}})
    assert spec_of(world, ModelServing)["replicas"] == 5
    assert spec_of(world, ModelRoute, "qwen")["modelName"] == "other"


def test_another_backend_leaves_nothing_of_the_first() -> None:
    world = settled(booster())
    bump(world, {"spec": {"backend": {"name": "second"}}})
    assert [one.metadata.name for one in world.list(ModelServing, NAMESPACE)] == ["qwen-second"]
    assert [one.metadata.name for one in world.list(ModelServer, NAMESPACE)] == ["qwen-second"]


def test_children_that_kthena_made_from_this_spec_are_left_alone() -> None:
    world = settled(booster())
    foreign = {"metadata": {"labels": {labels.BOOSTER_REVISION: "58bd96d5d5"}}, "spec": {"template": {"roles": []}}}
    world.change(ModelServing, NAMESPACE, "qwen-main", foreign)
    converge(reconcile_model_booster, world, NAMESPACE, "qwen", now=NOW)
    assert spec_of(world, ModelServing)["template"]["roles"] == []
    bump(world, {"spec": {"backend": {"replicas": 3}}})
    assert spec_of(world, ModelServing)["replicas"] == 3
    assert len(spec_of(world, ModelServing)["template"]["roles"]) == 1


def test_objectives_become_a_policy_that_then_owns_the_replicas() -> None:
    told = {"serving.hekla.dev/max-replicas": "8", "serving.hekla.dev/ttft": "500ms"}
    world = settled(booster(annotations=told))
    policy = spec_of(world, AutoscalingPolicy)
    target = policy["homogeneousTarget"]
    assert (target["minReplicas"], target["maxReplicas"]) == (1, 8)
    assert policy["metrics"] == [{"name": "vllm:time_to_first_token_seconds", "targetValue": "500m"}]
    world.change(ModelServing, NAMESPACE, "qwen-main", {"spec": {"replicas": 7}})
    bump(world, {"spec": {"backend": {"workers": [{"type": "server", "image": "vllm:2", "replicas": 1}]}}})
    assert spec_of(world, ModelServing)["replicas"] == 7
    assert container(entry(world), "engine")["image"] == "vllm:2"


def test_prefill_holds_the_first_token_and_decode_the_others() -> None:
    told = {
        "serving.hekla.dev/max-replicas": "8",
        "serving.hekla.dev/ttft": "500ms",
        "serving.hekla.dev/inter-token": "40ms",
    }
    world = settled(disaggregated(annotations=told))
    roles = spec_of(world, AutoscalingPolicy)["disaggregatedTarget"]["roles"]
    assert roles["prefill"]["metrics"] == [{"name": "vllm:time_to_first_token_seconds", "targetValue": "500m"}]
    assert roles["decode"]["metrics"] == [{"name": "vllm:inter_token_latency_seconds", "targetValue": "40m"}]


@pytest.mark.parametrize(("key", "text"), [("ttft", "soon"), ("ttft", "-1s"), ("max-replicas", "many")])
def test_an_annotation_that_cannot_be_read_is_told(key: str, text: str) -> None:
    told = {"serving.hekla.dev/max-replicas": "8", f"serving.hekla.dev/{key}": text}
    status, message = condition(settled(booster(annotations=told)), "Failed")
    assert status == "True"
    assert f'serving.hekla.dev/{key} is "{text}"' in message


@pytest.mark.parametrize("make", [booster, disaggregated])
def test_what_every_reconciler_keeps(make) -> None:  # type: ignore[no-untyped-def]
    assert_converges(reconcile_model_booster, FakeWorld(make()), NAMESPACE, "qwen", now=NOW)
    assert_heals(reconcile_model_booster, lambda: FakeWorld(make()), NAMESPACE, "qwen", now=NOW)
    assert_touches_only_its_own(reconcile_model_booster, FakeWorld(make()), NAMESPACE, "qwen", now=NOW)
