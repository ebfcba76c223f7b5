"""What a real Kubernetes 1.36.2 made of patches of every kind: JSON, merge, strategic merge, and server-side apply.

`patches.jsonl` was recorded from its API server: a sequence of requests, most with the answer. Where an answer is
missing ours differs in a way that docs/reference/kubernetes-differences.md tells of, or in words alone.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from tests.kubetruth.test_kinds_truth import prepare

from hekla.testing.api_server import KUBERNETES_RULES, ApiCaller, api_server

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "patches.jsonl").read_text().splitlines()]
MADE_BY_SERVER = {"uid", "resourceVersion", "creationTimestamp", "selfLink", "deletionTimestamp"}
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def normal(value: Any) -> Any:
    """An answer without what differs from run to run, as it was recorded."""
    if isinstance(value, dict):
        found = {key: normal(item) for key, item in value.items() if item is not None and item != []}
        return found | dict.fromkeys(MADE_BY_SERVER & found.keys(), "<made>") | ({"time": "<t>"} if "time" in found else {})  # fmt: skip
    if isinstance(value, list):
        found_items = [normal(item) for item in value]
        # entries of managedFields stand in the order of their times, which are whole seconds
        is_owners = any(isinstance(item, dict) and "fieldsV1" in item for item in value)
        return sorted(found_items, key=lambda item: json.dumps(item, sort_keys=True)) if is_owners else found_items
    if not isinstance(value, str):
        return value
    if re.match(r"\d{4}-\d\d-\d\dT", value):
        return "<time>"
    return re.sub(r"\b\d{3,}\b", "N", UID.sub("<uid>", value))


def shown(document: Any) -> Any:
    """Of a refusal its reason, sentence and causes; of an object everything."""
    found = normal(document)
    if not isinstance(found, dict) or found.get("kind") != "Status":
        return found
    causes = [[one.get("field"), one.get("reason")] for one in (found.get("details") or {}).get("causes", [])]
    return {key: found[key] for key in ("reason", "code", "message") if key in found} | (
        {"causes": causes} if causes else {}
    )


def without_owners(document: Any) -> Any:
    """What the recorded answers to patches that nobody applied lack."""
    if isinstance(document, dict) and isinstance(document.get("metadata"), dict):
        document["metadata"].pop("managedFields", None)
    return document


async def replay() -> list[str]:
    wrong = []
    async with ApiCaller(api_server(rules=KUBERNETES_RULES)) as api:
        await prepare(api)
        for one in RECORDED:
            body = one.get("body")
            sent = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
            answer = await api.response(
                one["method"], one["path"], sent, content_type=one.get("type", "application/json")
            )
            got, want = {"status": answer.status}, {key: normal(one[key]) for key in ("status", "answer") if key in one}
            if "answer" in one:
                got["answer"] = shown(json.loads(answer.body))
                if "managedFields" not in json.dumps(one["answer"]):
                    got["answer"] = without_owners(got["answer"])
            if "status" in one and got != want:
                wrong.append(f"{one['method']} {one['path']} {sent[:300]!r}\n  want {want}\n  got  {got}")
    return wrong


def test_a_patch_makes_of_an_object_what_a_real_kubernetes_makes_of_it() -> None:
    wrong = asyncio.run(replay())
    assert not wrong, "\n".join(wrong[:20])
