"""What a real Kubernetes 1.36.2 made of workloads, configuration, rights, quotas, endpoints, nodes, events and attachments.

`objects.jsonl` was recorded from its API server as `kinds.jsonl` was, with full objects of which every field was left
out, emptied, doubled or spoilt in turn. Two things are not held to the letter: the order and number of sentences (it
checks some objects twice), and values that it prints as Go structs.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from tests.kubetruth.test_kinds_truth import clean, prepare, said

from hekla.testing.api_server import KUBERNETES_RULES, ApiCaller, api_server

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "objects.jsonl").read_text().splitlines()]
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
STRUCT = re.compile(r"(Invalid value|Duplicate value): [\[{].*[\]}]: ")


def sentence(text: str) -> str:
    """A sentence without the values that are printed as structs, by the names of Go's fields."""
    text = STRUCT.sub(r"\1: <struct>: ", text)
    text = re.sub(r"Duplicate value: [\[{].*[\]}]", "Duplicate value: <struct>", text)
    text = text.replace("Invalid value: null: ", "Invalid value: <struct>: ")
    return re.sub(
        r"spec\.template(\.spec)?: Invalid value: <struct>: field is immutable", "spec.template: immutable", text
    )


def bare(value: Any) -> Any:
    """A document without empty lists, which Go sometimes keeps."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if item not in ([], None)}
    return [bare(item) for item in value] if isinstance(value, list) else value


def normal(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as it was recorded."""
    text = re.sub(r'"x-[a-z0-9]{5}"', '"x-<random>"', UID.sub("<uid>", json.dumps(answer)))
    found: dict[str, Any] = json.loads(text)
    found["said"] = sorted({sentence(one) for one in found["said"]})
    if "object" in found:
        found["object"] = bare(found["object"])
    return found


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
        path = f"{one['create']}/{one['before']['metadata']['name']}"
        await api.delete(f"{path}?gracePeriodSeconds=0&propagationPolicy=Background")
    return normal(found)


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


def test_an_object_is_made_and_changed_as_by_a_real_kubernetes() -> None:
    wrong = asyncio.run(replay())
    assert not wrong, "\n".join(wrong[:20])
