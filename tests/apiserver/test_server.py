import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any

from hekla.apiserver.admission import User
from hekla.apiserver.auth.attributes import Attributes, Decision
from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.memory_store import MemoryStore
from hekla.testing.api_server import ApiCaller, api_server

CMS = "/api/v1/namespaces/default/configmaps"
Scene = Callable[[ApiCaller], Coroutine[Any, Any, None]]


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def played(scene: Scene, api: ApiCaller | None = None) -> None:
    async def play() -> None:
        async with api or ApiCaller() as caller:
            await scene(caller)

    asyncio.run(play())


def test_what_is_created_is_there_until_it_is_deleted() -> None:
    async def scene(api: ApiCaller) -> None:
        status, made = await api.post(CMS, config_map("a", k="v"))
        assert (status, made["data"], made["metadata"]["namespace"]) == (201, {"k": "v"}, "default")
        status, found = await api.get(f"{CMS}/a")
        assert (status, found["data"], found["metadata"]["uid"]) == (200, {"k": "v"}, made["metadata"]["uid"])
        assert (await api.delete(f"{CMS}/a"))[0] == 200
        assert (await api.get(f"{CMS}/a"))[0] == 404

    played(scene)


def test_the_four_namespaces_are_always_there() -> None:
    async def scene(api: ApiCaller) -> None:
        _, found = await api.get("/api/v1/namespaces")
        names = [one["metadata"]["name"] for one in found["items"]]
        assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]

    played(scene)


def test_a_second_start_on_the_same_store_keeps_everything() -> None:
    async def play() -> None:
        store = MemoryStore()
        async with ApiCaller(api_server(store)) as api:
            await api.post(CMS, config_map("a"))
        async with ApiCaller(api_server(store)) as api:
            assert (await api.get(f"{CMS}/a"))[0] == 200
            assert len((await api.get("/api/v1/namespaces"))[1]["items"]) == 4

    asyncio.run(play())


def test_of_two_writers_that_read_the_same_revision_one_loses() -> None:
    async def scene(api: ApiCaller) -> None:
        _, made = await api.post(CMS, config_map("a", n="0"))
        revision = made["metadata"]["resourceVersion"]
        bodies = [config_map("a", n=str(n)) for n in (1, 2)]
        for body in bodies:
            body["metadata"]["resourceVersion"] = revision
        answers = await asyncio.gather(*(api.put(f"{CMS}/a", body) for body in bodies))
        assert sorted(status for status, _ in answers) == [200, 409]

    played(scene)


def test_patches_that_collide_are_all_kept() -> None:
    async def scene(api: ApiCaller) -> None:
        await api.post(CMS, config_map("a"))
        await asyncio.gather(*(api.patch(f"{CMS}/a", {"data": {f"k{n}": "v"}}) for n in range(20)))
        assert len((await api.get(f"{CMS}/a"))[1]["data"]) == 20

    played(scene)


def test_a_dry_run_shows_what_would_be_and_changes_nothing() -> None:
    async def scene(api: ApiCaller) -> None:
        status, shown = await api.post(f"{CMS}?dryRun=All", config_map("a", k="v"))
        assert (status, shown["data"]) == (201, {"k": "v"})
        assert (await api.get(f"{CMS}/a"))[0] == 404
        await api.post(CMS, config_map("a", k="v"))
        status, shown = await api.call(
            "PATCH", f"{CMS}/a?dryRun=All", {"data": {"k": "w"}}, content_type="application/merge-patch+json"
        )
        assert shown["data"] == {"k": "w"}
        assert (await api.delete(f"{CMS}/a?dryRun=All"))[0] == 200
        assert (await api.get(f"{CMS}/a"))[1]["data"] == {"k": "v"}

    played(scene)


def test_pages_together_are_the_list_as_it_was_when_the_first_was_read() -> None:
    async def scene(api: ApiCaller) -> None:
        for n in range(7):
            await api.post(CMS, config_map(f"c{n}"))
        _, page = await api.get(f"{CMS}?limit=3")
        names, token = [one["metadata"]["name"] for one in page["items"]], page["metadata"]["continue"]
        assert page["metadata"]["remainingItemCount"] == 4
        await api.delete(f"{CMS}/c4")
        await api.post(CMS, config_map("c99"))
        while token:
            _, page = await api.get(f"{CMS}?limit=3&continue={token}")
            names += [one["metadata"]["name"] for one in page["items"]]
            token = page["metadata"].get("continue", "")
        assert names == [f"c{n}" for n in range(7)]

    played(scene)


def test_a_page_of_a_past_that_is_gone_brings_a_token_for_the_rest_as_it_is_now() -> None:
    async def scene(api: ApiCaller) -> None:
        for n in range(7):
            await api.post(CMS, config_map(f"c{n}"))
        _, page = await api.get(f"{CMS}?limit=2&labelSelector=!absent")
        token = page["metadata"]["continue"]
        await api.delete(f"{CMS}/c4")
        for n in range(8):
            await api.post(CMS, config_map(f"d{n}"))
        status, said = await api.get(f"{CMS}?limit=2&continue={token}")
        assert (status, said["reason"], said["code"]) == (410, "Expired", 410)
        assert said["message"].startswith(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the "
            "continue parameter, or use the continue token in this response to retrieve the remainder of the results."
        )
        token, names = said["metadata"]["continue"], []
        while token:
            status, page = await api.get(f"{CMS}?limit=2&continue={token}")
            names += [one["metadata"]["name"] for one in page["items"]]
            token = page["metadata"].get("continue", "")
        assert names == ["c2", "c3", "c5", "c6", *(f"d{n}" for n in range(8))]

    store = MemoryStore(limits=WindowLimits(changes=4))
    played(scene, ApiCaller(api_server(store)))


def test_no_continue_token_names_a_revision_that_cannot_be() -> None:
    async def scene(api: ApiCaller) -> None:
        await api.post(CMS, config_map("a"))
        for revision, status in ((0, 400), (-2, 400), (10**30, 504), (1.5, 400), ("1", 400), (-1, 200), (None, 400)):
            text = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": ""})
            token = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
            assert (await api.get(f"{CMS}?continue={token}"))[0] == status, revision

    played(scene)


def test_a_list_of_the_future_is_refused_with_a_hint_to_retry() -> None:
    async def scene(api: ApiCaller) -> None:
        status, said = await api.get(f"{CMS}?resourceVersion=999999&resourceVersionMatch=NotOlderThan")
        assert (status, said["reason"], said["details"]["retryAfterSeconds"]) == (504, "Timeout", 1)

    played(scene)


def test_a_namespaced_object_has_no_path_without_its_namespace() -> None:
    async def scene(api: ApiCaller) -> None:
        assert (await api.get("/api/v1/pods/p"))[0] == 404
        assert (await api.get("/api/v1/namespaces/default/nodes"))[0] == 404

    played(scene)


def test_a_body_of_more_than_three_megabytes_is_refused() -> None:
    async def scene(api: ApiCaller) -> None:
        status, said = await api.post(CMS, b'{"a":"' + b"x" * (3 << 20) + b'"}')
        assert (status, said["reason"]) == (413, "RequestEntityTooLarge")

    played(scene)


def test_a_json_nested_too_deep_is_refused_and_the_server_lives() -> None:
    async def scene(api: ApiCaller) -> None:
        deep = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
        for method, path in (("POST", CMS), ("PUT", f"{CMS}/a")):
            for kind in ("application/json", "application/yaml"):
                assert (await api.call(method, path, deep, content_type=kind))[0] == 400
        assert (await api.call("POST", CMS, b"- " * 100_000 + b"x", content_type="application/yaml"))[0] == 400
        await api.post(CMS, config_map("a"))
        for kind in (
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ):
            assert (await api.call("PATCH", f"{CMS}/a?fieldManager=x", deep, content_type=kind))[0] == 400
        assert (await api.get(f"{CMS}/a"))[0] == 200

    played(scene)


def test_a_yaml_that_unfolds_without_end_is_refused() -> None:
    async def scene(api: ApiCaller) -> None:
        lines = [b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)]
        assert (
            await api.call(
                "PATCH", f"{CMS}/a?fieldManager=x", b"\n".join(lines), content_type="application/apply-patch+yaml"
            )
        )[0] == 400

    played(scene)


def test_a_label_selector_of_a_megabyte_is_refused() -> None:
    async def scene(api: ApiCaller) -> None:
        status, said = await api.get(f"{CMS}?labelSelector={'a' * (1 << 20)}")
        assert (status, "characters" in said["message"]) == (400, True)

    played(scene)


class OnlyReads:
    def decide(self, attributes: Attributes) -> Decision:
        return Decision(attributes.verb in {"get", "list"})

    def rules_for(self, _user: User, _namespace: str) -> tuple[list[dict[str, list[str]]], list[dict[str, list[str]]]]:
        return [], []


def test_who_may_only_read_is_told_what_was_forbidden() -> None:
    async def scene(api: ApiCaller) -> None:
        assert (await api.get(CMS))[0] == 200
        status, said = await api.post(CMS, config_map("a"))
        assert status == 403
        assert said["message"] == (
            'configmaps is forbidden: User "system:admin" cannot create resource "configmaps" in API group "" '
            'in the namespace "default"'
        )

    played(scene, ApiCaller(api_server(authorizer=OnlyReads())))


def test_nobody_is_let_in_without_a_name() -> None:
    async def scene(api: ApiCaller) -> None:
        status, said = await api.get(CMS)
        assert (status, said["message"]) == (401, "Unauthorized")

    played(scene, ApiCaller(api_server(authenticate=lambda _request: None)))


def test_a_disk_that_is_full_is_said_and_reads_go_on() -> None:
    async def play() -> None:
        store = MemoryStore()
        async with ApiCaller(api_server(store)) as api:
            await api.post(CMS, config_map("a"))
            store.refuse_commits = 1
            status, said = await api.post(CMS, config_map("b"))
            assert (status, said["reason"]) == (503, "ServiceUnavailable")
            assert (await api.get(f"{CMS}/b"))[0] == 404
            assert (await api.get(f"{CMS}/a"))[0] == 200
            assert (await api.post(CMS, config_map("b")))[0] == 201

    asyncio.run(play())


def test_yaml_is_read_and_written_where_it_is_wanted() -> None:
    async def scene(api: ApiCaller) -> None:
        body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata: {k: v}\n"
        found = await api.response("POST", CMS, body, content_type="application/yaml", accept="application/yaml")
        assert (found.status, found.content_type) == (201, "application/yaml")
        assert isinstance(found.body, bytes)
        assert b"data:\n  k: v\n" in found.body

    played(scene)


def test_items_of_builtin_lists_carry_no_kind_and_those_of_watches_do() -> None:
    async def scene(api: ApiCaller) -> None:
        await api.post(CMS, config_map("a"))
        _, found = await api.get(CMS)
        assert "kind" not in found["items"][0]
        sink = await api.watch(f"{CMS}?watch=true")
        assert [(kind, one["kind"]) for kind, one in sink.events] == [("ADDED", "ConfigMap")]

    played(scene)


def test_a_watch_list_ends_its_beginning_with_a_bookmark() -> None:
    async def scene(api: ApiCaller) -> None:
        await api.post(CMS, config_map("a"))
        sink = await api.watch(
            f"{CMS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        )
        assert [kind for kind, _ in sink.events] == ["ADDED", "BOOKMARK"]
        assert sink.events[1][1]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await api.post(CMS, config_map("b"))
        assert [kind for kind, _ in sink.events] == ["ADDED", "BOOKMARK", "ADDED"]

    played(scene)


def test_a_watch_from_a_list_misses_nothing_and_repeats_nothing() -> None:
    async def scene(api: ApiCaller) -> None:
        await api.post(CMS, config_map("a", n="1"))
        _, listed = await api.get(CMS)
        await api.patch(f"{CMS}/a", {"data": {"n": "2"}})
        await api.delete(f"{CMS}/a")
        sink = await api.watch(f"{CMS}?watch=true&resourceVersion={listed['metadata']['resourceVersion']}")
        assert [(kind, one["data"]["n"]) for kind, one in sink.events] == [("MODIFIED", "2"), ("DELETED", "2")]

    played(scene)


def test_metrics_and_health_answer() -> None:
    async def scene(api: ApiCaller) -> None:
        for path in ("/healthz", "/livez", "/readyz", "/readyz?verbose"):
            assert (await api.get(path))[0] == 200
        status, text = await api.get("/metrics")
        assert (status, 'apiserver_storage_objects{resource="namespaces"} 4' in text) == (200, True)
        await api.get(CMS)
        _, text = await api.get("/metrics")
        assert 'apiserver_request_total{verb="LIST",resource="configmaps",code="200"} 1' in text

    played(scene)


def test_a_handler_that_fails_answers_with_a_status_and_no_details() -> None:
    async def scene(api: ApiCaller) -> None:
        found = await api.response("POST", CMS, json.dumps(config_map("a")).encode(), content_type="application/json")
        assert found.status == 500
        assert isinstance(found.body, bytes)
        assert b"secret" not in found.body

    def broken() -> str:
        raise RuntimeError("a secret")

    api = ApiCaller(api_server())
    namespaces_made = api.server.backend.uids
    calls = iter([namespaces_made] * 4)
    api.server.backend.uids = lambda: next(calls, broken)()
    played(scene, api)


def test_a_long_list_comes_in_pieces_that_are_one_list() -> None:
    async def scene(api: ApiCaller) -> None:
        for n in range(10):
            await api.post(CMS, config_map(f"c{n}", filler="x" * 1_000_000))
        found = await api.response("GET", CMS)
        assert not isinstance(found.body, bytes)
        assert not callable(found.body)
        pieces = [piece async for piece in found.body]
        assert max(map(len, pieces)) < 3 << 20
        assert len(json.loads(b"".join(pieces))["items"]) == 10
        assert len((await api.delete(CMS))[1]["items"]) == 10

    played(scene)


def test_an_event_is_one_object_in_both_of_its_groups() -> None:
    async def scene(api: ApiCaller) -> None:
        new = "/apis/events.k8s.io/v1/namespaces/default/events"
        event = {
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "hi", "reason": "Why",
            "type": "Normal", "action": "Do", "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "example.com/me", "reportingInstance": "me-0",
            "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        }  # fmt: skip
        status, made = await api.post(new, event)
        assert (status, made["apiVersion"], made["note"]) == (201, "events.k8s.io/v1", "hi")
        _, listed = await api.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp")
        assert [(one["message"], one["reportingComponent"]) for one in listed["items"]] == [("hi", "example.com/me")]
        _, patched = await api.patch(
            f"{new}/e", {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
        )
        assert patched["series"]["count"] == 2
        sink = await api.watch(f"{new}?watch=true")
        assert [(kind, one["kind"], one["note"]) for kind, one in sink.events] == [("ADDED", "Event", "hi")]
        _, old = await api.get("/api/v1/namespaces/default/events/e")
        assert (old["apiVersion"], old["involvedObject"]["name"]) == ("v1", "p")
        await api.delete(f"{new}/e")
        assert (await api.get("/api/v1/namespaces/default/events/e"))[0] == 404

    played(scene)


def test_a_generated_name_that_is_taken_is_made_up_anew() -> None:
    suffixes = iter(["aaaaa", "aaaaa", "aaaaa", "bbbbb", *["aaaaa"] * 8])

    async def scene(api: ApiCaller) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}}
        made = [(await api.post(CMS, body))[1]["metadata"]["name"] for _ in range(2)]
        assert made == ["c-aaaaa", "c-bbbbb"]
        status, said = await api.post(CMS, body)
        assert (status, said["message"]) == (409, 'configmaps "c-aaaaa" already exists')

    played(scene, ApiCaller(api_server(suffixes=lambda: next(suffixes))))
