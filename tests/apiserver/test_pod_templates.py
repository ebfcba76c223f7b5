import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.apiserver import pod_templates
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.testing.api_server import JSON, KUBERNETES_RULES, ApiCaller, api_server

PODS = "/api/v1/namespaces/default/pods"
Scene = Callable[["Kubernetes"], Coroutine[Any, Any, None]]


@dataclass
class Sees:
    """A rule that writes down whom it is shown, and asks somebody outside if it is told to."""

    goes_by_template: bool = True
    asks_outside: bool = False
    name: str = "Sees"
    seen: list[str] = field(default_factory=list)

    def wants(self, request: AdmissionRequest) -> bool:
        return request.kind.resource == "pods" and not request.subresource

    def mutate(self, request: AdmissionRequest, reader: Reader) -> Any:
        self.seen.append(request.name)
        return asyncio.sleep(0) if self.asks_outside else None

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        assert request.object is not None


class Kubernetes(ApiCaller):
    """A server with Kubernetes' rules, and one that sees which pods go the long way."""

    def __init__(self, sees: Sees | None = None) -> None:
        self.sees = sees or Sees()
        super().__init__(api_server(rules=(*KUBERNETES_RULES, self.sees)))

    async def make(self, name: str, **spec: Any) -> Document:
        status, made = await self.post(PODS, pod(name, **spec))
        assert status == 201, made
        return dict(made)


def pod(name: str, **spec: Any) -> Document:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "0.50"}}}
    metadata = {"labels": {"app": "a"}, "name": name, "annotations": {"note": "n"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def played(scene: Scene, sees: Sees | None = None) -> None:
    async def play() -> None:
        async with Kubernetes(sees) as api:
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            assert (await api.post("/api/v1/namespaces/default/serviceaccounts", account))[0] == 201
            await scene(api)

    asyncio.run(play())


def but_for_its_own(made: Document) -> str:
    """A pod's text without what is its own: its name, its uid, its times, its revision. The order of keys counts."""
    own = ("name", "uid", "creationTimestamp", "resourceVersion")
    metadata = {key: "" if key in own else value for key, value in made["metadata"].items()}
    if "managedFields" in metadata:
        metadata["managedFields"] = [{**one, "time": ""} for one in metadata["managedFields"]]
    return json.dumps({**made, "metadata": metadata})


SPECS: dict[str, Document] = {
    "plain": {},
    "with an account of its own": {"automountServiceAccountToken": False},
    "with an empty list and a null": {"volumes": [], "hostname": None, "nodeSelector": {}},
    "on the host's network": {"hostNetwork": True, "tolerations": [{"operator": "Exists"}]},
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_who_comes_third_is_what_the_first_became_but_for_name_uid_and_revision(spec: Document) -> None:
    async def scene(api: Kubernetes) -> None:
        made = [await api.make(f"pod-{number}", **spec) for number in range(4)]
        assert api.sees.seen == ["pod-0", "pod-1"]
        assert len({but_for_its_own(one) for one in made}) == 1
        assert len({one["metadata"]["uid"] for one in made}) == 4
        assert [one["metadata"]["name"] for one in made] == [f"pod-{number}" for number in range(4)]
        found = [(await api.get(f"{PODS}/pod-{number}"))[1] for number in range(4)]
        assert len({but_for_its_own(one) for one in found}) == 1
        _, listed = await api.get(f"{PODS}?labelSelector=app=a&fieldSelector=metadata.name=pod-3")
        assert [one["metadata"]["name"] for one in listed["items"]] == ["pod-3"]

    played(scene)


def test_pods_whose_names_are_made_up_have_a_template_too() -> None:
    async def scene(api: Kubernetes) -> None:
        document = pod("")
        del document["metadata"]["name"]
        document["metadata"]["generateName"] = "web-"
        made = [(await api.post(PODS, document))[1] for _ in range(4)]
        assert len(api.sees.seen) == 2
        assert len({but_for_its_own(one) for one in made}) == 1
        assert len({one["metadata"]["name"] for one in made}) == 4
        assert all(one["metadata"]["name"].startswith("web-") for one in made)

    played(scene)


def test_a_name_that_is_taken_or_odd_is_told_as_ever() -> None:
    async def scene(api: Kubernetes) -> None:
        for number in range(3):
            await api.make(f"pod-{number}")
        status, said = await api.post(PODS, pod("pod-2"))
        assert (status, said["message"]) == (409, 'pods "pod-2" already exists')
        assert (await api.post(PODS, pod("Not_A_Name")))[0] == 422
        odd = await api.response("POST", PODS, json.dumps(pod("a.b")).encode(), content_type=JSON)
        assert odd.status == 201
        assert "warning" in dict(odd.headers)

    played(scene)


@pytest.mark.parametrize("once", [b'"kind": "Pod"', b'"name": "pod-x"'])
def test_what_a_text_says_twice_is_told_as_ever(once: bytes) -> None:
    async def scene(api: Kubernetes) -> None:
        for number in range(3):
            await api.make(f"pod-{number}")
        twice = json.dumps(pod("pod-x")).encode().replace(once, once + b", " + once)
        status, said = await api.call("POST", f"{PODS}?fieldValidation=Strict", twice)
        assert (status, "duplicate field" in said["message"]) == (400, True)

    played(scene)


@pytest.mark.parametrize("unknown", [b'"nosuch": 1, ', b'"hostname": "h", "hostname": "h", '])
def test_who_passes_over_what_is_unknown_teaches_nobody(unknown: bytes) -> None:
    async def scene(api: Kubernetes) -> None:
        async def sent(name: str, validation: str) -> tuple[int, Document]:
            text = json.dumps(pod(name)).encode().replace(b'"containers"', unknown + b'"containers"')
            return await api.call("POST", f"{PODS}?fieldValidation={validation}", text)

        for number in range(4):
            assert (await sent(f"pod-{number}", "Ignore"))[0] == 201
        status, said = await sent("strict", "Strict")
        assert (status, "strict decoding error" in said["message"]) == (400, True), said

    played(scene)


def test_a_pod_without_a_name_is_not_taken_for_one_that_has_a_name_and_says_nothing_twice() -> None:
    async def scene(api: Kubernetes) -> None:
        def text(name: bytes) -> bytes:
            return json.dumps(pod("n")).encode().replace(b'"name": "n"', name + b', "generateName": ""')

        for number in range(3):
            status, said = await api.call("POST", PODS, text(b'"name": "pod-%d"' % number))
            assert status == 201, said
        status, said = await api.call("POST", PODS, text(b'"generateName": ""'))
        assert (status, said.get("reason")) == (422, "Invalid"), said

    played(scene)


LIMIT = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]}}  # fmt: skip
QUOTA = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "5"}}}
PRIORITY = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "p"}, "value": 7, "globalDefault": True}  # fmt: skip


def test_what_the_rules_look_up_is_looked_up_anew_once_it_has_changed() -> None:
    async def scene(api: Kubernetes) -> None:
        async def next_one() -> tuple[int, Document]:
            status, said = await api.post(PODS, pod(f"pod-{len(seen)}"))
            seen.append(status)
            return status, said

        seen: list[int] = []
        for _ in range(3):
            await next_one()
        await api.post("/api/v1/namespaces/default/limitranges", LIMIT)
        limited = [(await next_one())[1]["spec"]["containers"][0]["resources"].get("limits") for _ in range(3)]
        assert limited == [{"memory": "1Gi"}] * 3
        await api.post("/apis/scheduling.k8s.io/v1/priorityclasses", PRIORITY)
        assert [(await next_one())[1]["spec"]["priority"] for _ in range(3)] == [7] * 3
        await api.delete("/api/v1/namespaces/default/serviceaccounts/default")
        assert [(await next_one())[0] for _ in range(3)] == [403] * 3

    played(scene)


def test_a_quota_counts_every_pod_of_a_template() -> None:
    async def scene(api: Kubernetes) -> None:
        for number in range(3):
            await api.make(f"early-{number}")
        await api.post("/api/v1/namespaces/default/resourcequotas", QUOTA)
        answers = [(await api.post(PODS, pod(f"late-{number}")))[0] for number in range(4)]
        assert answers == [201, 201, 403, 403]

    played(scene)


@pytest.mark.parametrize("sees", [Sees(goes_by_template=False), Sees(asks_outside=True)])
def test_a_rule_that_goes_by_more_or_asks_outside_is_shown_every_pod(sees: Sees) -> None:
    async def scene(api: Kubernetes) -> None:
        for number in range(5):
            await api.make(f"pod-{number}")
        assert sees.seen == [f"pod-{number}" for number in range(5)]

    played(scene, sees)


def test_a_dry_run_and_a_pod_with_a_gate_go_the_long_way() -> None:
    async def scene(api: Kubernetes) -> None:
        for number in range(3):
            await api.make(f"pod-{number}")
        assert (await api.post(f"{PODS}?dryRun=All", pod("dry")))[0] == 201
        assert (await api.get(f"{PODS}/dry"))[0] == 404
        gates = [{"name": "example.com/g"}]
        for number in range(3):
            await api.make(f"gated-{number}", schedulingGates=gates)
        assert api.sees.seen[2:] == ["dry", "gated-0", "gated-1", "gated-2"]

    played(scene)


def test_no_more_templates_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_templates, "MOST_TEMPLATES", 2)

    async def scene(api: Kubernetes) -> None:
        for priority in ("a", "b", "c"):
            for number in range(3):
                await api.make(f"pod-{priority}{number}", hostname=priority)
        templates = api.server.backend.pod_templates
        assert len(templates._known) <= 2
        assert len(templates._seen_once) <= 2
        # the third kind of text had all others forgotten, and was learned like the first
        assert api.sees.seen[-2:] == ["pod-c0", "pod-c1"]

    played(scene)


def test_objects_that_change_all_the_time_have_nobody_learn_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_templates, "MOST_STALE", 2)

    async def scene(api: Kubernetes) -> None:
        for number in range(6):
            await api.make(f"pod-{number}")
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"n-{number}"}}
            await api.post("/api/v1/namespaces", space)
        (known,) = api.server.backend.pod_templates._known.values()
        assert (known.template, known.stale) == (None, 2)

    played(scene)
