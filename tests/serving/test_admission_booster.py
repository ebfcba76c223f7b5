"""Whether a ModelBooster is refused as Kthena's webhook refuses it."""

from typing import Any

import msgspec
import pytest

from hekla.api.kthena import ModelBooster
from hekla.serving.admission_booster import convert_model_booster, refuse_model_booster
from serving.admissionkit import refused, request

WORKERS = "spec.backend.workers"


def booster(*workers: dict[str, Any], kind: str = "vLLM", **backend: Any) -> dict[str, Any]:
    usual = {"name": "b", "type": kind, "modelURI": "hf://org/model", "replicas": 1}
    return {"spec": {"backend": {**usual, "workers": list(workers) or [worker()], **backend}}}


def worker(kind: str = "server", **more: Any) -> dict[str, Any]:
    return {"type": kind, "image": "vllm", "replicas": 1, "pods": 1, **more}


def pair(prefill: Any = None, decode: Any = None) -> dict[str, Any]:
    return booster(
        worker("prefill", config=prefill or {}), worker("decode", config=decode or {}), kind="vLLMDisaggregated"
    )


def transfer(connector: Any = "NixlConnector", role: Any = "kv_both") -> dict[str, Any]:
    said = {"kv_connector": connector, "kv_role": role}
    return {"kv-transfer-config": msgspec.json.encode({k: v for k, v in said.items() if v is not None}).decode()}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            booster(replicas=1_000_001),
            "spec.backend.replicas: Invalid value: 1000001: replicas (1000001) cannot exceed",
        ),
        (
            booster(worker(image="a b")),
            f'{WORKERS}[0].image: Invalid value: "a b": invalid container image reference: image',
        ),
        (booster(worker(image=" ")), "invalid container image reference: image cannot be empty or whitespace only"),
        (
            booster(worker(), worker()),
            f"{WORKERS}: Invalid value: 2: If backend type is 'vLLM', there must be exactly one",
        ),
        (booster(worker("decode")), "If backend type is 'vLLM', the worker type must be 'server'"),
        (
            booster(worker(), kind="vLLMDisaggregated"),
            f"{WORKERS}[0].type: Invalid value: \"server\": If backend type is 'vLLMDisaggregated', all workers must be type "
            "'prefill' or 'decode'",
        ),
        (
            booster(worker(config={"port": "x"})),
            f'{WORKERS}[0].config.port: Invalid value: "x": invalid port "x" for worker server',
        ),
        (
            booster(worker(config={"port": 8100})),
            f"{WORKERS}[0].config.port: Invalid value: 8100: the side-car in the same pod listens on 8100: take another port",
        ),
        (
            pair({"port": 8000}, {"port": 9000}),
            f"{WORKERS}[1].config.port: Invalid value: 9000: workers use different engine ports: 8000 and 9000",
        ),
        (
            booster(modelURI="pvc://claim/model"),
            'spec.backend.cacheURI: Invalid value: "": when modelURI uses pvc://, cacheURI must also use pvc://.',
        ),
        (
            booster(modelURI="pvc://../other", cacheURI="pvc://claim"),
            "spec.backend.modelURI: Invalid value: \"pvc://../other\": pvc:// modelURI must not contain '..' path segments",
        ),
        (
            booster(modelURI="pvc:///a/b", cacheURI="pvc://a/b"),
            "pvc:// cacheURI must contain a single PVC claim name with no path separator",
        ),
        (
            booster(modelURI="pvc:///other/model", cacheURI="pvc://claim"),
            r'PVC source path "/other/model" is not reachable via cacheURI mount "/claim".',
        ),
        (
            booster(worker("prefill"), worker("prefill"), kind="vLLMDisaggregated"),
            f'{WORKERS}: Invalid value: "b": invalid kv connector configuration: backend b: found 2 prefill workers, expected '
            "at most 1; duplicate prefill workers are not supported",
        ),
        (
            pair({}, transfer()),
            'backend b: decode worker specifies kv_connector "NixlConnector" but the prefill worker has no kv-transfer-config',
        ),
        (
            pair(transfer(), {}),
            'backend b: prefill worker specifies kv_connector "NixlConnector" but the decode worker has no kv-transfer-config',
        ),
        (
            pair(transfer(), transfer("LMCacheConnectorV1")),
            'kv_connector mismatch between prefill ("NixlConnector") and decode ("LMCacheConnectorV1") workers',
        ),
        (
            pair({"kv-transfer-config": {}}, {}),
            "worker prefill: kv-transfer-config must be a JSON string, got map[string]",
        ),
        (
            pair({"kv-transfer-config": "{"}, {}),
            "worker prefill: invalid kv-transfer-config: failed to unmarshal config: ",
        ),
        (pair(transfer(None), {}), "worker prefill: kv-transfer-config is set but kv_connector is missing"),
        (
            pair(transfer("X"), {}),
            'worker prefill: unsupported kv_connector "X" (supported: LMCacheConnectorV1, MooncakeConnector, '
            "MooncakeConnectorV1, NixlConnector)",
        ),
        (pair(transfer(role=None), {}), "worker prefill: kv-transfer-config is set but kv_role is missing"),
        (
            pair(transfer(role="kv_consumer"), {}),
            'worker prefill: invalid kv_role "kv_consumer", expected one of [kv_producer, kv_both]',
        ),
    ],
)
def test_what_the_webhook_refuses(document: dict[str, Any], said: str) -> None:
    sentence = refused(refuse_model_booster, ModelBooster, document)
    assert sentence.startswith("validation failed:\n  - ")
    assert said in sentence


@pytest.mark.parametrize(
    "document",
    [
        booster(),
        booster(worker(config={"port": "9000"})),
        booster(modelURI="pvc:///claim/models/q", cacheURI="pvc://claim"),
        pair(transfer(role="kv_producer"), transfer(role="kv_consumer")),
        pair(transfer("MooncakeConnector"), transfer("MooncakeConnectorV1")),
    ],
)
def test_what_it_lets_in(document: dict[str, Any]) -> None:
    nobody: Any = None
    assert refuse_model_booster(request(ModelBooster, document), nobody) == ""


def converted(**backend: Any) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    document = booster(**backend)
    if "replicas" not in backend:
        del document["spec"]["backend"]["replicas"]
    asked = request(ModelBooster, document)
    convert_model_booster(asked, None)  # type: ignore[arg-type]  # it reads nothing
    return document["spec"]["backend"], document["metadata"].get("annotations", {}), asked.warnings


@pytest.mark.parametrize(
    ("bounds", "replicas", "scaled"),
    [
        ({"minReplicas": 1, "maxReplicas": 5}, 1, ("1", "5")),
        ({"minReplicas": 0, "maxReplicas": 2}, 1, ("0", "2")),
        ({"minReplicas": 3, "maxReplicas": 3}, 3, ()),
        ({"minReplicas": 2}, 2, ()),
        ({"maxReplicas": 4}, 1, ("1", "4")),
        ({"minReplicas": 1, "maxReplicas": 5, "replicas": 2}, 2, ("1", "5")),
    ],
)
def test_the_bounds_of_a_booster_of_03_become_replicas_and_a_policy(
    bounds: dict[str, int], replicas: int, scaled: tuple[str, ...]
) -> None:
    backend, annotations, warnings = converted(**bounds)
    assert backend["replicas"] == replicas
    assert not {"minReplicas", "maxReplicas"} & backend.keys()
    names = "serving.hekla.dev/min-replicas", "serving.hekla.dev/max-replicas"
    assert annotations == dict(zip(names, scaled, strict=False))
    [warning] = warnings
    assert f"write replicas: {replicas}" in warning
    assert all(name in warning for name in annotations)


def test_bounds_that_cross_are_refused_and_a_booster_of_today_is_left_as_it_is() -> None:
    crossed = booster(minReplicas=5, maxReplicas=2)
    convert_model_booster(request(ModelBooster, crossed), None)  # type: ignore[arg-type]  # it reads nothing
    said = refused(refuse_model_booster, ModelBooster, crossed)
    assert "spec.backend.minReplicas: Invalid value: 5: it is more than maxReplicas (2)" in said
    before = booster()
    assert converted()[2] == []
    assert converted(replicas=1)[0] == before["spec"]["backend"]


def annotated(**told: str) -> dict[str, Any]:
    names = {f"serving.hekla.dev/{name.replace('_', '-')}": value for name, value in told.items()}
    return {**booster(), "metadata": {"name": "one", "namespace": "ml", "annotations": names}}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"max_replicas": "x"}, 'max-replicas is "x"; write a number from 0 to 1000000'),
        ({"max_replicas": "2", "min_replicas": "3"}, 'max-replicas is "2"; it must be at least 1 and serving.hekla.dev/min-'),
        ({"max_replicas": "0", "min_replicas": "0"}, 'max-replicas is "0"; it must be at least 1'),
        ({"max_replicas": "2", "ttft": "soon"}, 'ttft is "soon"; write a duration above 0, such as 500ms'),
        ({"inter_token": "-1s"}, 'inter-token is "-1s"; write a duration above 0'),
    ],
)  # fmt: skip
def test_annotations_that_cannot_be_read_are_refused_when_they_are_written(told: dict[str, str], said: str) -> None:
    refusal = refused(refuse_model_booster, ModelBooster, annotated(**told))
    assert "metadata.annotations: Invalid value: " in refusal
    assert said in refusal


def test_annotations_that_change_nothing_are_warned_of() -> None:
    for told, idle in (
        ({"ttft": "500ms"}, "ttft"),
        ({"max_replica": "3"}, "max-replica"),
        ({"max_replicas": "3", "ttft": "1s"}, ""),
    ):
        asked = request(ModelBooster, annotated(**told))
        assert not refuse_model_booster(asked, None)  # type: ignore[arg-type]  # it reads nothing
        assert [one.split(" changes")[0] for one in asked.warnings] == [f"annotation serving.hekla.dev/{idle}"] * bool(
            idle
        )


@pytest.mark.parametrize(
    ("port", "told", "is_refused"),
    [(8000, "8000", True), (8100, "9100", False), (8100, "nine", True), (8100, "9" * 5000, True), (8000, None, False)],
)
def test_an_engine_and_its_side_car_have_a_port_each(port: int, told: str | None, is_refused: bool) -> None:
    env = [{"name": "RUNTIME_PORT", "value": told}] if told is not None else []
    asked = request(ModelBooster, booster(worker(config={"port": port}), env=env))
    sentence = refuse_model_booster(asked, None)  # type: ignore[arg-type]  # it reads nothing
    assert ("the side-car in the same pod listens on" in sentence) == is_refused
