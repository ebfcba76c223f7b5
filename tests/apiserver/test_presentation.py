import asyncio
import json
from datetime import UTC, datetime

import pytest

from hekla.api.kthena import AutoscalingPolicy
from hekla.apiserver.jsonpath import find
from hekla.apiserver.negotiation import wanted
from hekla.apiserver.printers_workloads import pod_status
from hekla.apiserver.status import StatusError
from hekla.apiserver.tables import declared_cell, duration, since
from hekla.testing.api_server import ApiCaller

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (3600 * 2, "120m"), (3600 * 5, "5h"), (3600 * 7 + 60, "7h1m"),
     (86400 * 3, "3d"), (86400 * 3 + 3600, "3d1h"), (86400 * 400, "400d"), (86400 * 365 * 3 + 86400, "3y1d"), (-5, "<invalid>")],
)  # fmt: skip
def test_durations_are_as_short_as_kubectl_says_them(seconds: int, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_time_that_is_none_is_unknown() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert [since(moment, now) for moment in (None, "", "tomorrow")] == ["<unknown>"] * 3


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        (".list[*].n", [1, 2]),
        (".list[0].n", [1]),
        ('.list[?(@.type=="y")].n', [2]),
        (".map['x.y']", ["z"]),
        (r".map.x\.y", ["z"]),
        ("..n", [1, 2]),
        (".list..n", [1, 2]),
        ("..list[1].n", [2]),
        (".a..n", []),
        (".absent.b", []),
        (".list[9]", []),
    ],
)
def test_a_column_reads_its_path(path: str, found: list[object]) -> None:
    document = {"a": {"b": 1}, "list": [{"type": "x", "n": 1}, {"type": "y", "n": 2}], "map": {"x.y": "z"}}
    assert find(document, path) == found


def test_of_several_values_a_declared_column_shows_the_first_as_a_real_server_does() -> None:
    targets = [{"target": {"targetRef": {"name": name}}, "cost": 1} for name in ("small", "large")]
    [target] = [one for one in AutoscalingPolicy.kind_info.columns if one.name == "Target"]
    document = {"metadata": {"name": "mixed"}, "spec": {"heterogeneousTarget": {"params": targets}}}
    assert declared_cell(document, target, datetime(2026, 1, 1, tzinfo=UTC)) == "small"


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({"phase": "Running"}, "Running"),
        (
            {"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            "CrashLoopBackOff",
        ),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "ExitCode:3"),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "signal": 9}}}]},
            "Signal:9",
        ),
        (
            {
                "phase": "Succeeded",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}],
            },
            "Completed",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
    ],
)
def test_a_pods_status_is_one_word(status: dict[str, object], word: str) -> None:
    assert pod_status({"metadata": {}, "status": status}) == word


def test_every_builtin_kind_can_be_shown_as_a_table() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            for served in list(api.server.registry):
                if served.is_virtual:
                    continue
                status, table = await api.get(served.kind.path(), accept=TABLE)
                assert (status, table["kind"]) == (200, "Table"), served.kind
                assert table["columnDefinitions"], served.kind

    asyncio.run(play())


def test_a_watched_table_names_its_columns_once() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            found = await api.response("GET", "/api/v1/namespaces?watch=true", accept=TABLE)
            from hekla.testing.api_server import CollectingSink

            sink = CollectingSink()
            assert callable(found.body)
            found.body(sink)
            assert [bool(one["columnDefinitions"]) for _, one in sink.events] == [True, False, False, False]

    asyncio.run(play())


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/json",
        "application/vnd.kubernetes.protobuf,application/json",
        "application/json;as=Table;v=v9,application/json",
    ],
)
def test_json_is_what_is_agreed_on_wherever_it_is_accepted(accept: str) -> None:
    assert wanted(accept)[:2] == ("application/json", "")


@pytest.mark.parametrize("accept", ["text/csv", "application/vnd.kubernetes.protobuf", "application/json;as=Nonsense"])
def test_what_cannot_be_made_is_refused(accept: str) -> None:
    with pytest.raises(StatusError) as refused:
        wanted(accept)
    assert refused.value.code == 406


def test_every_openapi_document_resolves_its_own_references() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            _, index = await api.get("/openapi/v3")
            for entry in index["paths"].values():
                found = await api.response("GET", entry["serverRelativeURL"])
                assert isinstance(found.body, bytes)
                document = json.loads(found.body)
                schemas = document["components"]["schemas"]
                named = {part.split('"')[0] for part in found.body.decode().split('"#/components/schemas/')[1:]}
                assert named <= set(schemas), entry

    asyncio.run(play())


def test_discovery_is_not_sent_twice_to_who_has_it() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
            first = await api.response("GET", "/apis", accept=accept)
            tag = dict(first.headers)["etag"]
            assert first.content_type == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            assert (await api.response("GET", "/apis", accept=accept, if_none_match=tag)).status == 304

    asyncio.run(play())


def test_a_kind_unknown_to_openapi_is_no_reason_to_refuse_protobuf() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
            found = await api.response("GET", "/openapi/v2", accept=accept)
            assert (found.status, found.content_type) == (200, accept.replace("@", "."))
            assert found.body == b"\n\x032.0\x12\x1b\n\nKubernetes\x12\rv1.36.0-hekla"

    asyncio.run(play())
