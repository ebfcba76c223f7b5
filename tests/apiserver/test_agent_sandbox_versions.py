"""Whether an API server shows one object of agent-sandbox in both its versions, however it came."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from hekla.api.agents import AGENT_KINDS, Sandbox, SandboxClaim
from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.crd import crd_document
from hekla.api.meta import Document
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError
from hekla.kube.in_process import InProcessTransport
from hekla.testing import virtual_time
from hekla.testing.server import api_server

AGENTS = "/apis/agents.x-k8s.io"
SANDBOXES = f"{AGENTS}/v1alpha1/namespaces/default/sandboxes"
CLAIMS = "/apis/extensions.agents.x-k8s.io/v1alpha1/namespaces/default/sandboxclaims"
PODS: Document = {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "python"}]}}}
WEBHOOK = {
    "strategy": "Webhook",
    "webhook": {"clientConfig": {"url": "https://nobody.example"}, "conversionReviewVersions": ["v1"]},
}


@asynccontextmanager
async def client() -> AsyncIterator[ApiClient]:
    async with api_server() as server:
        api = ApiClient(InProcessTransport(server.handle))
        for kind in AGENT_KINDS:
            await api.create(CustomResourceDefinition, crd_document(kind, with_older=True))
        yield api


def run(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(scenario)


def older(**spec: Any) -> Document:
    return {
        "apiVersion": "agents.x-k8s.io/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "box"},
        "spec": {**PODS, **spec},
    }


async def document(api: ApiClient, method: str, path: str, body: Document | None = None, **more: Any) -> Document:
    answer = await api.request(method, path, body, **more)
    found: Document = answer if isinstance(answer, dict) else msgspec.json.decode(answer.body)
    return found


def test_a_sandbox_of_v1alpha1_is_suspended_and_woken_by_its_replicas() -> None:
    async def scenario() -> None:
        async with client() as api:
            made = await document(api, "POST", SANDBOXES, older())
            assert (made["apiVersion"], made["spec"]["replicas"]) == ("agents.x-k8s.io/v1alpha1", 1)
            assert (await api.get(Sandbox, "box", "default")).spec.operating_mode == "Running"
            patch = {"spec": {"replicas": 0}}
            await document(api, "PATCH", f"{SANDBOXES}/box", patch, content_type="application/merge-patch+json")
            stored = await api.get(Sandbox, "box", "default")
            assert stored.spec.operating_mode == "Suspended"
            scale = await document(api, "GET", f"{SANDBOXES}/box/scale")
            assert scale["spec"] == {}, "none is 0, as Kubernetes leaves it out"
            await api.patch(Sandbox, "box", {"spec": {"operatingMode": "Running"}}, "default")
            assert (await document(api, "GET", f"{SANDBOXES}/box"))["spec"]["replicas"] == 1

    run(scenario())


def test_lists_show_the_version_that_is_asked_for() -> None:
    async def scenario() -> None:
        async with client() as api:
            spec = {**PODS, "operatingMode": "Suspended"}
            info = Sandbox.kind_info
            new = {"apiVersion": info.api_version, "kind": "Sandbox", "metadata": {"name": "new"}, "spec": spec}
            await api.create(Sandbox, new, "default")
            await document(api, "POST", SANDBOXES, older())
            found = await document(api, "GET", SANDBOXES)
            assert [(one["metadata"]["name"], one["spec"]["replicas"]) for one in found["items"]] == [
                ("box", 1),
                ("new", 0),
            ]
            assert all("operatingMode" not in one["spec"] for one in found["items"])
            modes = {one.metadata.name: one.spec.operating_mode for one in (await api.list(Sandbox, "default")).items}
            assert modes == {"box": "Running", "new": "Suspended"}

    run(scenario())


def test_a_claim_on_a_template_reads_as_it_was_written() -> None:
    async def scenario() -> None:
        async with client() as api:
            spec = {"sandboxTemplateRef": {"name": "python"}, "warmpool": "none"}
            claim = {
                "apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim", "metadata": {"name": "c"},
                "spec": spec,
            }  # fmt: skip
            await document(api, "POST", CLAIMS, claim)
            assert (await document(api, "GET", f"{CLAIMS}/c"))["spec"] == spec
            assert (await api.get(SandboxClaim, "c", "default")).spec.warm_pool_ref.name == "shadow-pool-python"
            with pytest.raises(ApiError, match="sandboxTemplateRef"):
                await document(api, "POST", CLAIMS, {**claim, "metadata": {"name": "d"}, "spec": {}})

    run(scenario())


def test_definitions_with_the_peers_webhook_are_taken_and_others_are_not() -> None:
    async def scenario() -> None:
        async with api_server() as server:
            api = ApiClient(InProcessTransport(server.handle))
            theirs = crd_document(Sandbox, with_older=True)
            theirs["spec"]["conversion"] = WEBHOOK
            await api.create(CustomResourceDefinition, theirs)
            await asyncio.sleep(0)
            await document(api, "POST", SANDBOXES, older(replicas=0))
            assert (await api.get(Sandbox, "box", "default")).spec.operating_mode == "Suspended"
            theirs = crd_document(SandboxClaim, with_older=True)
            theirs["spec"]["conversion"] = WEBHOOK
            theirs["spec"]["versions"].append({**theirs["spec"]["versions"][1], "name": "v1alpha0"})
            with pytest.raises(ApiError, match="conversion between versions by webhook is not done here"):
                await api.create(CustomResourceDefinition, theirs)

    run(scenario())
