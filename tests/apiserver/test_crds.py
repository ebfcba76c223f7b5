import asyncio
from typing import Any

from hekla.apiserver.memory_store import MemoryStore
from hekla.testing.api_server import ApiCaller, api_server

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def definition(*versions: str, plural: str = "widgets", kind: str = "Widget", **spec: Any) -> dict[str, Any]:
    schema = {
        "openAPIV3Schema": {
            "type": "object",
            "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
        }
    }
    served = [
        {"name": v, "served": True, "storage": n == 0, "schema": schema} for n, v in enumerate(versions or ("v1",))
    ]
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    body = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": served, **spec}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**head, "metadata": {"name": f"{plural}.example.com"}, "spec": body}


def widget(name: str = "w", version: str = "v1", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"example.com/{version}", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


async def until(condition: Any) -> None:
    for _ in range(500):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


async def established(api: ApiCaller, name: str = "widgets") -> None:
    async def is_so() -> bool:
        _, found = await api.get(f"{CRDS}/{name}.example.com")
        conditions = (found.get("status") or {}).get("conditions") or []
        return {"NamesAccepted", "Established"} <= {c["type"] for c in conditions if c["status"] == "True"}

    await until(is_so)


def test_a_definition_is_served_and_announced() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition())
            await established(api)
            assert (await api.post(WIDGETS, widget(size=1)))[0] == 201
            _, found = await api.get("/apis/example.com/v1")
            assert [one["name"] for one in found["resources"]] == ["widgets"]
            _, index = await api.get("/openapi/v3")
            assert "apis/example.com/v1" in index["paths"]

    asyncio.run(play())


def test_versions_show_one_object_each_in_its_own_name() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition("v1", "v1beta1"))
            await established(api)
            await api.post(WIDGETS, widget(size=1))
            beta = WIDGETS.replace("/v1/", "/v1beta1/")
            _, found = await api.get(f"{beta}/w")
            assert (found["apiVersion"], found["spec"]) == ("example.com/v1beta1", {"size": 1})
            await api.post(beta, widget("x", "v1beta1", size=2))
            _, listed = await api.get(WIDGETS)
            assert [one["apiVersion"] for one in listed["items"]] == ["example.com/v1"] * 2

    asyncio.run(play())


def test_a_new_storage_version_leaves_old_objects_readable() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition("v1", "v1beta1"))
            await established(api)
            await api.post(WIDGETS, widget(size=1))
            _, found = await api.get(f"{CRDS}/widgets.example.com")
            for version in found["spec"]["versions"]:
                version["storage"] = not version["storage"]
            assert (await api.put(f"{CRDS}/widgets.example.com", found))[0] == 200
            assert (await api.get(f"{WIDGETS}/w"))[1]["apiVersion"] == "example.com/v1"
            assert (await api.patch(f"{WIDGETS}/w", {"spec": {"size": 3}}))[1]["spec"] == {"size": 3}

    asyncio.run(play())


def test_a_definition_that_goes_takes_its_objects_along_and_its_path() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition())
            await established(api)
            await api.post(WIDGETS, widget("a"))
            held = widget("b")
            held["metadata"]["finalizers"] = ["example.com/hold"]
            await api.post(WIDGETS, held)
            await api.delete(f"{CRDS}/widgets.example.com")

            async def only_b_is_left() -> bool:
                return [one["metadata"]["name"] for one in (await api.get(WIDGETS))[1]["items"]] == ["b"]

            await until(only_b_is_left)
            assert (await api.post(WIDGETS, widget("late")))[0] == 405
            await api.patch(f"{WIDGETS}/b", {"metadata": {"finalizers": None}})

            async def is_gone() -> bool:
                return (await api.get(WIDGETS))[0] == 404 and (await api.get(f"{CRDS}/widgets.example.com"))[0] == 404

            await until(is_gone)

    asyncio.run(play())


def test_custom_resources_are_served_again_after_a_restart() -> None:
    async def play() -> None:
        store = MemoryStore()
        async with ApiCaller(api_server(store)) as api:
            await api.post(CRDS, definition())
            await established(api)
            await api.post(WIDGETS, widget(size=1))
        async with ApiCaller(api_server(store)) as api:
            assert (await api.get(f"{WIDGETS}/w"))[1]["spec"] == {"size": 1}

    asyncio.run(play())


def test_names_that_are_taken_are_not_accepted() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition())
            await established(api)
            await api.post(CRDS, definition(plural="gadgets"))

            async def is_refused() -> bool:
                conditions = (await api.get(f"{CRDS}/gadgets.example.com"))[1]["status"].get("conditions") or []
                return any(c["type"] == "NamesAccepted" and c["status"] == "False" for c in conditions)

            await until(is_refused)
            assert (await api.get("/apis/example.com/v1/gadgets"))[0] == 404

    asyncio.run(play())


def test_webhook_conversion_is_refused_with_a_sentence() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            webhook = {"clientConfig": {"url": "https://x.example.com"}, "conversionReviewVersions": ["v1"]}
            status, said = await api.post(
                CRDS, definition("v1", "v2", conversion={"strategy": "Webhook", "webhook": webhook})
            )
            assert (status, "webhook is not done here" in said["message"]) == (422, True)

    asyncio.run(play())


def test_watches_of_a_kind_that_goes_see_its_objects_go_and_end_and_others_live_on() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition())
            await established(api)
            await api.post(WIDGETS, widget("a", size=1))
            watch = await api.watch(f"{WIDGETS}?watch=1")
            others = [await api.watch(f"{path}?watch=1") for path in ("/api/v1/pods", "/apis/events.k8s.io/v1/events")]
            await api.delete(f"{CRDS}/widgets.example.com")

            async def has_ended() -> bool:
                return watch.is_closed

            await until(has_ended)
            assert [(kind, one["metadata"]["name"]) for kind, one in watch.events] == [("ADDED", "a"), ("DELETED", "a")]
            assert not any(other.is_closed for other in others)

    asyncio.run(play())


def test_a_change_from_1_to_true_is_a_change_and_the_same_in_another_order_is_none() -> None:
    free = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}

    async def play() -> None:
        async with ApiCaller() as api:
            made = definition()
            made["spec"]["versions"][0]["schema"] = free
            await api.post(CRDS, made)
            await established(api)
            _, first = await api.post(WIDGETS, widget(on=1, more={"a": 1, "b": 2}))
            read = {"name": "w", "resourceVersion": first["metadata"]["resourceVersion"]}
            _, same = await api.put(f"{WIDGETS}/w", {**widget(more={"b": 2, "a": 1}, on=1), "metadata": read})
            assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
            _, changed = await api.put(f"{WIDGETS}/w", {**widget(on=True, more={"a": 1, "b": 2}), "metadata": read})
            assert changed["spec"]["on"] is True
            assert changed["metadata"]["generation"] == 2
            _, found = await api.get(f"{WIDGETS}/w")
            assert found["spec"]["on"] is True

    asyncio.run(play())


def test_explain_is_told_what_a_field_may_be_and_what_every_object_has() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition())
            await established(api)
            _, core = await api.get("/openapi/v3/api/v1")
            schemas = core["components"]["schemas"]
            policy = schemas["io.k8s.api.core.v1.Container"]["properties"]["imagePullPolicy"]
            assert policy["enum"] == ["Always", "IfNotPresent", "Never"]
            assert '\n\nPossible enum values:\n - `"Always"` means' in policy["description"]
            _, own = await api.get("/openapi/v3/apis/example.com/v1")
            head = own["components"]["schemas"]["com.example.v1.Widget"]["properties"]
            config = schemas["io.k8s.api.core.v1.ConfigMap"]["properties"]
            for field in ("apiVersion", "kind", "metadata"):
                assert head[field]["description"] == config[field]["description"]

    asyncio.run(play())


def test_a_custom_resource_that_is_patched_to_another_kind_names_the_field_and_selects_as_kubernetes_says() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(CRDS, definition())
            await established(api)
            await api.post(WIDGETS, widget(size=1))
            status, refused = await api.patch(f"{WIDGETS}/w", {"kind": "Gadget"}, "application/merge-patch+json")
            assert status == 422
            assert refused["message"] == (
                'Gadget.example.com "w" is invalid: kind: Invalid value: "Gadget": must be Widget'
            )
            status, refused = await api.get(f"{WIDGETS}?fieldSelector=spec.size%3D1")
            assert (status, refused["message"].endswith("field label not supported: spec.size")) == (400, True)

    asyncio.run(play())
