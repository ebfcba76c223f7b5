"""How claims and volumes may change, as a real Kubernetes 1.36.2 answered to the same requests."""

import asyncio
import json
from typing import Any

from hekla.testing.api_server import ApiCaller, api_server

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
MERGE = "application/merge-patch+json"
IMMUTABLE = "spec: Forbidden: spec is immutable after creation"
SOURCE = "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"
TOO_SMALL = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"


async def said(api: ApiCaller, method: str, path: str, body: dict[str, Any], kind: str = "application/json") -> str:
    """Nothing where it was done, or the cause of the refusal."""
    answer = await api.response(method, path, json.dumps(body).encode(), content_type=kind)
    if answer.status < 400:
        return ""
    (cause,) = json.loads(answer.body)["details"]["causes"]
    return f"{cause['field']}: {cause['message']}"


def claim(**spec: Any) -> dict[str, Any]:
    asked = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "10Gi"}}}
    return {"metadata": {"name": "c"}, "spec": {**asked, **spec}}


def test_a_claim_that_is_replaced_by_its_manifest_says_what_it_is_filled_from_in_one_way() -> None:
    async def story() -> None:
        async with ApiCaller(api_server()) as api:
            source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
            assert await said(api, "POST", CLAIMS, claim(dataSource=source)) == ""
            assert await said(api, "PUT", f"{CLAIMS}/c", claim(dataSource=source)) == ""
            assert await said(api, "PUT", f"{CLAIMS}/c", claim(dataSourceRef=source)) == ""
            other = {**source, "name": "t"}
            assert (await said(api, "PUT", f"{CLAIMS}/c", claim(dataSourceRef=other))).startswith(IMMUTABLE)
            assert (await said(api, "PUT", f"{CLAIMS}/c", claim())).startswith(IMMUTABLE)

    asyncio.run(story())


def test_a_claim_that_could_not_be_enlarged_may_ask_for_less_but_not_for_what_it_is() -> None:
    async def story() -> None:
        async with ApiCaller(api_server()) as api:
            assert await said(api, "POST", CLAIMS, claim(volumeName="v")) == ""
            bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}
            assert await said(api, "PATCH", f"{CLAIMS}/c/status", bound, MERGE) == ""
            for amount, wrong in (("5Gi", ""), ("1Gi", TOO_SMALL), ("500Mi", TOO_SMALL), ("4Gi", "")):
                change = {"spec": {"resources": {"requests": {"storage": amount}}}}
                assert await said(api, "PATCH", f"{CLAIMS}/c", change, MERGE) == wrong, amount

    asyncio.run(story())


def test_the_secret_by_which_a_volume_is_enlarged_may_be_added_and_nothing_else() -> None:
    async def story() -> None:
        async with ApiCaller(api_server()) as api:
            csi = {"driver": "d.example.com", "volumeHandle": "h"}
            spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}, "csi": csi}
            assert await said(api, "POST", VOLUMES, {"metadata": {"name": "v"}, "spec": spec}) == ""
            for field, value, wrong in (
                ("controllerExpandSecretRef", {"name": "a", "namespace": "b"}, ""),
                ("controllerExpandSecretRef", {"name": "a2", "namespace": "b"}, SOURCE),
                ("nodeStageSecretRef", {"name": "a2", "namespace": "b"}, SOURCE),
                ("controllerExpandSecretRef", None, SOURCE),
            ):
                change = {"spec": {"csi": {field: value}}}
                told = await said(api, "PATCH", f"{VOLUMES}/v", change, MERGE)
                assert told.split("\n")[0] == wrong, (field, value)

    asyncio.run(story())
