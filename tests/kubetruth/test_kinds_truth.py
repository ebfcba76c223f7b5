"""What a real Kubernetes 1.36.2 made of objects of the smaller kinds: new ones, replaced ones, patched ones.

`kinds.jsonl` was recorded from its API server: one line a request (a dry run), with the object that was there before it
if any, and the status, the causes or the message, the warnings, and the object that came of it without what a server
makes up. Nulls are as good as nothing.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from hekla.testing.api_server import KUBERNETES_RULES, ApiCaller, api_server

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "kinds.jsonl").read_text().splitlines()]
NAMESPACE = "kd"
MADE_BY_SERVER = (
    "managedFields",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "finalizers",
    "lastPhaseTransitionTime",
)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


async def prepare(api: ApiCaller) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await api.post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})


def clean(value: Any) -> Any:
    """A document without what a server makes up."""
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items() if item is not None and key not in MADE_BY_SERVER}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return "<time>" if isinstance(value, str) and TIME.match(value) else value


def said(status: int, document: dict[str, Any]) -> list[str]:
    """The causes of a refusal, or its sentence."""
    if status < 400:
        return []
    causes = document.get("details", {}).get("causes")
    if status == 422 and causes:
        # a message ends where Kubernetes goes on with a difference of Go structs
        return sorted(f"{one.get('field', '')}: {one['message'].split(chr(10))[0]} ({one['reason']})" for one in causes)
    return [document["message"]]


async def answered(api: ApiCaller, one: dict[str, Any]) -> dict[str, Any]:
    """What this server says to one request."""
    if "before" in one:
        status, document = await api.post(one["create"], one["before"])
        assert status == 201, document
    body, kind = json.dumps(one["body"]).encode(), one.get("type", "application/json")
    answer = await api.response(one["method"], one["path"], body, content_type=kind)
    document = json.loads(answer.body)
    found = {"status": answer.status, "said": said(answer.status, document)}
    found["warnings"] = sorted(value for name, value in answer.headers if name.lower() == "warning")
    if answer.status < 400:
        found["object"] = clean(document)
    if "before" in one:
        await api.delete(f"{one['create']}/{one['before']['metadata']['name']}?gracePeriodSeconds=0")
    return found


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


def test_an_object_of_a_smaller_kind_is_made_and_changed_as_by_a_real_kubernetes() -> None:
    wrong = asyncio.run(replay())
    assert not wrong, "\n".join(wrong[:20])
