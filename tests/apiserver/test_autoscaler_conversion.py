import asyncio
import json
from typing import Any

import pytest

from hekla.apiserver.autoscaler_conversion import from_stored, to_stored
from hekla.testing.api_server import ApiCaller

WHERE = "/apis/autoscaling/{}/namespaces/default/horizontalpodautoscalers"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


def metric(name: str, **target: Any) -> dict[str, Any]:
    return {"type": "Resource", "resource": {"name": name, "target": target}}


CPU = metric("cpu", type="Utilization", averageUtilization=55)
MEMORY = metric("memory", type="AverageValue", averageValue="1Gi")


def autoscaler(version: str, **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": f"autoscaling/{version}", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}}
    return {**head, "spec": {"scaleTargetRef": TARGET, "maxReplicas": 4, "minReplicas": 1, **spec}}


def test_what_kubectl_autoscale_writes_shows_its_target() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(WHERE.format("v1"), autoscaler("v1", targetCPUUtilizationPercentage=55))
            _, newer = await api.get(f"{WHERE.format('v2')}/h")
            assert newer["spec"] == autoscaler("v2", metrics=[CPU])["spec"]
            assert newer["status"] == {"desiredReplicas": 0}
            _, older = await api.get(f"{WHERE.format('v1')}/h")
            assert older["spec"] == autoscaler("v1", targetCPUUtilizationPercentage=55)["spec"]
            assert older["status"] == {"currentReplicas": 0, "desiredReplicas": 0}
            table = "application/json;as=Table;v=v1;g=meta.k8s.io"
            _, shown = await api.get(WHERE.format("v2"), accept=table)
            assert shown["rows"][0]["cells"][1:3] == ["Deployment/web", "cpu: <unknown>/55%"]

    asyncio.run(play())


def test_who_reads_and_writes_the_older_version_loses_nothing() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 30}}

    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(WHERE.format("v2"), autoscaler("v2", metrics=[MEMORY, CPU], behavior=behavior))
            _, before = await api.get(f"{WHERE.format('v2')}/h")
            _, older = await api.get(f"{WHERE.format('v1')}/h")
            assert older["spec"]["targetCPUUtilizationPercentage"] == 55
            older["spec"]["maxReplicas"] = 9
            assert (await api.put(f"{WHERE.format('v1')}/h", older))[0] == 200
            _, after = await api.get(f"{WHERE.format('v2')}/h")
            assert after["spec"] == {**before["spec"], "maxReplicas": 9}
            assert "annotations" not in after["metadata"]

    asyncio.run(play())


def test_what_is_measured_survives_the_older_version() -> None:
    seen = {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 12}}}
    conditions = [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    stored = {**autoscaler("v2", metrics=[CPU]), "status": {"currentMetrics": [seen], "conditions": conditions}}
    older = from_stored(stored)
    assert older["status"]["currentCPUUtilizationPercentage"] == 12
    assert to_stored(older)["status"] == {**stored["status"], "desiredReplicas": 0}


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", '{"a": 1}', '[{"type": "Resource", "resource": 5}]', "[" * 9999])
def test_an_annotation_of_another_form_stays(text: str) -> None:
    older = autoscaler("v1")
    older["metadata"]["annotations"] = {"autoscaling.alpha.kubernetes.io/metrics": text}
    assert to_stored(older)["metadata"] == older["metadata"]


@pytest.mark.parametrize("name", ["metrics", "behavior", "current-metrics", "conditions"])
@pytest.mark.parametrize(
    "text",
    [
        '[{"type": "Resource", "resource": 5}]', '[{"type": 3}]', '{"scaleUp": []}', "null",
        '[{"type": "\\ud800"}]', '{"scaleUp": {"selectPolicy": "\\ud800"}}',
    ],
)  # fmt: skip
def test_no_annotation_keeps_autoscalers_from_being_read(name: str, text: str) -> None:
    written = autoscaler("v1", targetCPUUtilizationPercentage=55)
    written["metadata"]["annotations"] = {f"autoscaling.alpha.kubernetes.io/{name}": text}

    async def play() -> None:
        async with ApiCaller() as api:
            assert (await api.post(WHERE.format("v1"), written))[0] == 201
            for version in ("v1", "v2"):
                assert (await api.get(WHERE.format(version)))[0] == 200

    asyncio.run(play())


BOGUS = '[{"type": "Bogus"}]'
BELOW_ZERO = '{"scaleUp": {"policies": [{"type": "Pods", "value": -1, "periodSeconds": 15}]}}'


def annotated(**texts: str) -> dict[str, Any]:
    written = autoscaler("v1")
    hidden = {name.replace("_", "-"): text for name, text in texts.items()}
    written["metadata"]["annotations"] = {f"autoscaling.alpha.kubernetes.io/{key}": hidden[key] for key in hidden}
    return written


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ({"metrics": BOGUS}, "spec.metrics[0].type"),
        ({"behavior": BELOW_ZERO}, "spec.behavior.scaleUp.policies[0].value"),
    ],
)
def test_what_annotations_hold_is_checked_as_the_newer_version_is(texts: dict[str, str], field: str) -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            status, refused = await api.post(WHERE.format("v1"), annotated(**texts))
            assert (status, {cause["field"] for cause in refused["details"]["causes"]}) == (422, {field})
            await api.post(WHERE.format("v1"), autoscaler("v1"))
            change = {"metadata": annotated(**texts)["metadata"]}
            status, refused = await api.patch(f"{WHERE.format('v1')}/h", change)
            assert (status, {cause["field"] for cause in refused["details"]["causes"]}) == (422, {field})

    asyncio.run(play())


def test_an_annotation_is_the_status_only_where_the_status_is_written() -> None:
    conditions = [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    forged = annotated(conditions=json.dumps(conditions), current_metrics='[{"type": "Resource"}]')

    async def play() -> None:
        async with ApiCaller() as api:
            newer, older = f"{WHERE.format('v2')}/h", f"{WHERE.format('v1')}/h"
            await api.post(WHERE.format("v1"), forged)
            assert (await api.get(newer))[1]["status"] == {"desiredReplicas": 0}
            assert (await api.put(older, forged))[0] == 200
            assert (await api.get(newer))[1]["status"] == {"desiredReplicas": 0}
            assert (await api.put(f"{older}/status", forged))[0] == 200
            assert (await api.get(newer))[1]["status"]["conditions"] == conditions
            assert (await api.put(older, autoscaler("v1")))[0] == 200
            assert (await api.get(newer))[1]["status"]["conditions"] == conditions

    asyncio.run(play())


def test_the_older_version_written_back_changes_nothing() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            behavior = {"scaleDown": {"stabilizationWindowSeconds": 30}}
            await api.post(WHERE.format("v2"), autoscaler("v2", metrics=[MEMORY, CPU], behavior=behavior))
            _, older = await api.get(f"{WHERE.format('v1')}/h")
            del older["metadata"]["managedFields"]
            _, again = await api.put(f"{WHERE.format('v1')}/h", older)
            assert again["metadata"]["resourceVersion"] == older["metadata"]["resourceVersion"]

    asyncio.run(play())
