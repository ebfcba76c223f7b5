"""What a real Kubernetes 1.36.2 said to objects that somebody wants to make, most of them wrong ones.

`refusals.jsonl` was recorded from its API server: one line a request (a POST that is a dry run), with the status, the
causes or the message, and the warnings.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from hekla.testing.api_server import KUBERNETES_RULES, ApiCaller, api_server

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "refusals.jsonl").read_text().splitlines()]
NAMESPACE = "kd"


async def prepare(api: ApiCaller) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await api.post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
    high = {"metadata": {"name": "high"}, "value": 1000}
    await api.post("/apis/scheduling.k8s.io/v1/priorityclasses", high)


def said(status: int, document: dict[str, Any]) -> list[str]:
    """The causes of a refusal, or its sentence."""
    if status < 400:
        return []
    causes = document.get("details", {}).get("causes")
    if status == 422 and causes:
        return sorted(f"{cause.get('field', '')}: {cause['message']}" for cause in causes)
    return [document["message"]]


async def replay() -> list[str]:
    wrong = []
    async with ApiCaller(api_server(rules=KUBERNETES_RULES)) as api:
        await prepare(api)
        for one in RECORDED:
            body = json.dumps(one["body"]).encode()
            answer = await api.response("POST", one["path"], body, content_type="application/json")
            warnings = sorted(value for name, value in answer.headers if name.lower() == "warning")
            mine = (answer.status, said(answer.status, json.loads(answer.body)), warnings)
            wanted = (one["status"], one.get("said", []), one.get("warnings", []))
            if mine != wanted:
                wrong.append(f"{json.dumps(one['body'])[:300]}\n  want {wanted}\n  got  {mine}")
    return wrong


def test_a_new_object_is_refused_or_let_in_as_by_a_real_kubernetes() -> None:
    wrong = asyncio.run(replay())
    assert not wrong, "\n".join(wrong[:20])
