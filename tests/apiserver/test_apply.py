import asyncio
from typing import Any

from hekla.api.schema import for_kind
from hekla.apiserver.field_sets import fields_of_all, fields_v1, paths_in, paths_of
from hekla.apiserver.managed_fields import Entry, _covers, _is_mine_alone, written
from hekla.testing.api_server import APPLY, ApiCaller

CM = "/api/v1/namespaces/default/configmaps/a"
DEPLOY = "/apis/apps/v1/namespaces/default/deployments/d"


def config_map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}


def deployment(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": list(containers)}}
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


async def applied(
    api: ApiCaller, path: str, body: dict[str, Any], manager: str, *, force: bool = False
) -> tuple[int, Any]:
    return await api.patch(f"{path}?fieldManager={manager}&force={str(force).lower()}", body, APPLY)


def test_who_drops_a_field_removes_it_unless_another_owns_it_too() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await applied(api, CM, config_map(a="1", b="2"), "one")
            await applied(api, CM, config_map(a="1"), "two")
            _, found = await applied(api, CM, config_map(c="3"), "one")
            assert found["data"] == {"a": "1", "c": "3"}

    asyncio.run(play())


def test_a_field_that_a_plain_update_wrote_is_named_in_the_conflict() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post("/api/v1/namespaces/default/configmaps?fieldManager=maker", config_map(a="1", b="2"))
            status, said = await applied(api, CM, config_map(a="9", b="9"), "one")
            assert status == 409
            assert (
                said["message"]
                == 'Apply failed with 2 conflicts: conflicts with "maker" using v1:\n- .data.a\n- .data.b'
            )
            assert (await applied(api, CM, config_map(a="1"), "one"))[0] == 200

    asyncio.run(play())


def test_an_update_takes_the_fields_it_changes_from_their_owners() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await applied(api, CM, config_map(a="1", b="2"), "one")
            await api.patch(f"{CM}?fieldManager=editor", {"data": {"a": "9"}})
            _, found = await api.get(CM)
            owners = {e["manager"]: e["fieldsV1"] for e in found["metadata"]["managedFields"]}
            assert owners == {"one": {"f:data": {"f:b": {}}}, "editor": {"f:data": {"f:a": {}}}}
            status, said = await applied(api, CM, config_map(a="1", b="2"), "one")
            assert (status, said["details"]["causes"][0]["field"]) == (409, ".data.a")

    asyncio.run(play())


def test_containers_of_two_managers_live_in_one_list() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await applied(api, DEPLOY, deployment({"name": "a", "image": "x"}), "one")
            sidecar = deployment({"name": "b", "image": "y"})
            status, found = await applied(api, DEPLOY, sidecar, "two")
            assert (status, [c["name"] for c in found["spec"]["template"]["spec"]["containers"]]) == (200, ["a", "b"])
            _, found = await applied(api, DEPLOY, deployment({"name": "c", "image": "z"}), "two")
            assert [c["name"] for c in found["spec"]["template"]["spec"]["containers"]] == ["a", "c"]

    asyncio.run(play())


def test_a_scale_takes_replicas_from_the_applier() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            body = deployment({"name": "a", "image": "x"}, replicas=2)
            await applied(api, DEPLOY, body, "one")
            await api.patch(f"{DEPLOY}/scale?fieldManager=scaler", {"spec": {"replicas": 5}})
            status, said = await applied(api, DEPLOY, body, "one")
            assert (status, said["details"]["causes"][0]["message"]) == (
                409,
                'conflict with "scaler" with subresource "scale" using apps/v1',
            )
            status, found = await applied(api, DEPLOY, body, "one", force=True)
            assert (status, found["spec"]["replicas"]) == (200, 2)

    asyncio.run(play())


def test_what_changes_nothing_keeps_the_revision() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            _, first = await applied(api, CM, config_map(a="1"), "one")
            _, second = await applied(api, CM, config_map(a="1"), "one")
            assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]

    asyncio.run(play())


def test_an_applied_status_leaves_the_rest_alone() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await applied(api, DEPLOY, deployment({"name": "a", "image": "x"}, replicas=2), "one")
            head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
            body = {**head, "spec": {"replicas": 9}, "status": {"replicas": 1}}
            status, found = await applied(api, f"{DEPLOY}/status", body, "controller")
            assert (status, found["status"]["replicas"], found["spec"]["replicas"]) == (200, 1, 2)

    asyncio.run(play())


def test_lists_do_not_show_owners_nobody_worked_out_and_single_reads_do() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post("/api/v1/namespaces/default/configmaps?fieldManager=maker", config_map(a="1"))
            _, listed = await api.get("/api/v1/namespaces/default/configmaps")
            assert "managedFields" not in listed["items"][0]["metadata"]
            _, found = await api.get(CM)
            assert found["metadata"]["managedFields"][0]["fieldsV1"] == {"f:data": {".": {}, "f:a": {}}}

    asyncio.run(play())


def test_both_ways_of_writing_a_whole_object_down_agree() -> None:
    document = deployment({"name": "a", "ports": [{"containerPort": 80}], "resources": {}}, replicas=1)
    schema = for_kind("apps", "v1", "Deployment")
    paths = paths_of(document, schema, with_parents=True)
    assert fields_v1(paths) == fields_of_all(document, schema)
    assert paths_in(fields_v1(paths)) == paths


def test_what_an_apply_creates_is_stored_as_a_post_would_store_it() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            container = {
                "name": "c",
                "image": "i",
                "command": None,
                "workingDir": "",
                "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}},
            }
            status, made = await applied(api, DEPLOY, deployment(container), "one")
            found = made["spec"]["template"]["spec"]["containers"][0]
            assert (status, found["resources"]) == (201, {"limits": {"cpu": "500m", "memory": "1Gi"}})
            assert not {"command", "workingDir"} & found.keys()
            posted = deployment(container)
            posted["metadata"]["name"] = "e"
            _, other = await api.post("/apis/apps/v1/namespaces/default/deployments", posted)
            assert other["spec"] == made["spec"]

    asyncio.run(play())


def test_managed_fields_that_name_each_field_are_not_kept_in_memory() -> None:
    """Up to 4,096 objects' were, of tens of kilobytes each."""
    mine = Entry("me", "Update", "v1", "")
    named = Entry("applier", "Apply", "v1", "", paths=frozenset({("f:data", "f:a")}))
    assert _is_mine_alone(written([mine]), mine)
    kept = _covers.cache_info().currsize
    assert not _is_mine_alone(written([mine, named]), mine)
    assert _covers.cache_info().currsize == kept


def test_a_scale_is_applied_as_the_replicas_of_its_object() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await applied(api, DEPLOY, deployment({"name": "a", "image": "x"}, replicas=2), "one")
            scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}}
            body = {**scale, "spec": {"replicas": 5}}
            status, refused = await applied(api, f"{DEPLOY}/scale", body, "scaler")
            assert (status, refused["details"]["causes"][0]["field"]) == (409, ".spec.replicas")
            status, found = await applied(api, f"{DEPLOY}/scale", body, "scaler", force=True)
            assert (status, found["kind"], found["spec"]) == (200, "Scale", {"replicas": 5})
            _, found = await api.get(DEPLOY)
            owners = {one["manager"]: one for one in found["metadata"]["managedFields"]}
            assert owners["scaler"]["subresource"] == "scale"
            assert owners["scaler"]["fieldsV1"] == {"f:spec": {"f:replicas": {}}}
            assert "f:replicas" not in owners["one"]["fieldsV1"]["f:spec"]
            status, refused = await applied(api, f"{DEPLOY}/scale", {**body, "kind": "Deployment"}, "scaler")
            assert (status, refused["message"]) == (400, "invalid object type: autoscaling/v1, Kind=Deployment")

    asyncio.run(play())


def test_what_is_applied_says_its_name() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            status, refused = await applied(api, CM, {"apiVersion": "v1", "kind": "ConfigMap"}, "one")
            said = "was undeterminable: name must be provided"
            assert (status, refused["message"].partition(" URL) ")[2]) == (400, said)
            await api.post(CM.removesuffix("/a"), config_map(a="1"))
            nameless = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "2"}}
            for body in (nameless, {**nameless, "metadata": {}}, {**nameless, "metadata": None}):
                status, found = await applied(api, CM, body, "one", force=True)
                assert (status, found["data"]) == (200, {"a": "2"})
            for name in ("", None):
                status, refused = await applied(api, CM, {**nameless, "metadata": {"name": name}}, "one", force=True)
                assert (status, refused["message"].partition(" URL) ")[2]) == (400, said)

    asyncio.run(play())


def test_an_applied_scale_says_where_and_of_which_revision_it_is() -> None:
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 5}}

    async def play() -> None:
        async with ApiCaller() as api:
            await applied(api, DEPLOY, deployment({"name": "a", "image": "x"}, replicas=2), "one")

            async def asked(metadata: Any, **more: Any) -> int:
                body = {**scale, "metadata": metadata, **more}
                return (await applied(api, f"{DEPLOY}/scale", body, "scaler", force=True))[0]

            assert await asked({"name": "d", "resourceVersion": "1"}) == 409
            assert await asked({"name": "d", "uid": "another"}) == 409
            assert await asked({"name": "zzz"}) == 400
            assert await asked({"name": "d", "namespace": "other"}) == 400
            assert await asked({"name": "d", "managedFields": [{}]}) == 400
            stale = {**deployment(), "metadata": {"name": "d", "resourceVersion": "1"}, "status": {"replicas": 7}}
            assert (await applied(api, f"{DEPLOY}/status", stale, "scaler", force=True))[0] == 409
            assert await asked("x") == 400
            assert await asked(None, bogus=1) == 500
            assert await asked({"name": "d"}, bogus=1) == 500
            assert (await api.get(DEPLOY))[1]["spec"]["replicas"] == 2
            assert await asked({}) == 200
            owners = {one["manager"]: one for one in (await api.get(DEPLOY))[1]["metadata"]["managedFields"]}
            assert owners["scaler"]["fieldsV1"] == {"f:spec": {"f:replicas": {}}}

    asyncio.run(play())
