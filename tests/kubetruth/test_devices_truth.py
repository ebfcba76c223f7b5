"""What a real Kubernetes 1.36.2 made of claims of devices, their statuses and templates, classes, and drivers' slices.

`devices.jsonl` was recorded from its API server as `objects.jsonl` was, from objects of which every field was left out,
emptied, doubled, spoilt or made too long in turn.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.kubetruth.test_kinds_truth import prepare
from tests.kubetruth.test_objects_truth import answered

from hekla.testing.api_server import KUBERNETES_RULES, ApiCaller, api_server

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "devices.jsonl").read_text().splitlines()]


async def replay() -> list[str]:
    wrong = []
    async with ApiCaller(api_server(rules=KUBERNETES_RULES)) as api:
        await prepare(api)
        for one in RECORDED:
            mine = await answered(api, one)
            wanted = {"status": one["status"], "said": one.get("said", []), "warnings": one.get("warnings", [])}
            wanted |= {"object": one["object"]} if "object" in one else {}
            if mine != wanted:
                asked = f"{one['method']} {one['path']} {json.dumps(one['body'])[:300]}"
                wrong.append(f"{asked}\n  want {json.dumps(wanted)}\n  got  {json.dumps(mine)}")
    return wrong


def test_devices_are_claimed_and_offered_as_at_a_real_kubernetes() -> None:
    wrong = asyncio.run(replay())
    assert not wrong, "\n".join(wrong[:20])


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/kd/resourceclaims"
CLAIM = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "o"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "a"}}]}},
}  # fmt: skip
USER = {"resource": "pods", "name": "p", "uid": "u"}


def given(device: str) -> dict[str, Any]:
    return {"devices": {"results": [{"request": "r", "driver": "d.x", "pool": "p", "device": device}]}}


# (what is written of the status, one after the other; the status code; where it is refused)
STEPS: list[tuple[dict[str, Any], int, str]] = [
    ({"allocation": given("d"), "reservedFor": [USER], "devices": [{"driver": "d.x", "pool": "p", "device": "d"}]}, 200, ""),
    ({"allocation": given("e")}, 422, "status.allocation"),
    ({"reservedFor": [USER, {**USER, "uid": "v"}]}, 200, ""),
    ({"allocation": None}, 422, "status.reservedFor"),
    ({"allocation": None, "reservedFor": None}, 200, ""),
    ({"devices": [{"driver": "d.x", "pool": "p", "device": "d"}]}, 422, "status.devices[0]"),
    ({"allocation": given("e")}, 200, ""),
]  # fmt: skip


async def written() -> tuple[list[tuple[int, str]], dict[str, Any]]:
    found = []
    async with ApiCaller(api_server(rules=KUBERNETES_RULES)) as api:
        await prepare(api)
        await api.post(CLAIMS, CLAIM)
        for status, _, _ in STEPS:
            body = json.dumps({"status": status}).encode()
            answer = await api.response(
                "PATCH", f"{CLAIMS}/o/status", body, content_type="application/merge-patch+json"
            )
            document = json.loads(answer.body)
            causes = document.get("details", {}).get("causes", []) if answer.status >= 400 else []
            found.append((answer.status, ",".join(one["field"] for one in causes)))
    return found, document


def test_what_a_claim_was_given_stays_until_it_is_given_up_and_takes_what_drivers_say_with_it() -> None:
    found, document = asyncio.run(written())
    assert found == [(code, field) for _, code, field in STEPS]
    assert document["status"] == {"allocation": given("e")}
