import asyncio
import json
from typing import Any

import pytest

from hekla.apiserver.protobuf import MAGIC, as_json
from hekla.apiserver.status import StatusError
from hekla.testing.api_server import ApiCaller

PROTOBUF = "application/vnd.kubernetes.protobuf"


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, raw)


def metadata(name: str) -> bytes:
    # as Go writes it: every field that is no pointer, empty or not
    return field(1, name) + field(2, "") + field(3, "") + field(5, "") + field(6, "") + field(7, 0) + field(8, b"")


def read(body: bytes) -> Any:
    return json.loads(as_json(body))


def test_a_config_map_is_read_without_the_zeros_that_go_writes() -> None:
    body = envelope(
        "v1",
        "ConfigMap",
        field(1, metadata("a"))
        + field(2, field(1, "k") + field(2, "v"))
        + field(3, field(1, "b") + field(2, b"\x00\xff")),
    )
    found = read(body)
    assert found == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "a"},
        "data": {"k": "v"},
        "binaryData": {"b": "AP8="},
    }


def test_quantities_ports_and_embedded_structs_have_their_json() -> None:
    limits = field(1, field(1, "cpu") + field(2, field(1, "500m")))
    probe = field(1, field(2, field(1, "/x") + field(2, field(1, 1) + field(2, 0) + field(3, "http"))))
    volume_mount = field(1, "v") + field(2, 0) + field(3, "/data")
    container = field(1, "c") + field(2, "x") + field(8, limits) + field(9, volume_mount) + field(10, probe)
    volume = field(1, "v") + field(2, field(2, b""))
    found = read(
        envelope("v1", "Pod", field(1, metadata("p")) + field(2, field(1, volume) + field(2, container) + field(4, 0)))
    )
    spec = found["spec"]
    assert spec["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert spec["terminationGracePeriodSeconds"] == 0, "a pointer's zero is a value"
    assert spec["containers"][0]["resources"] == {"limits": {"cpu": "500m"}}
    assert spec["containers"][0]["livenessProbe"] == {"httpGet": {"path": "/x", "port": "http"}}
    assert spec["containers"][0]["volumeMounts"] == [{"name": "v", "mountPath": "/data"}]


def test_times_are_text() -> None:
    lease = field(2, field(1, "me") + field(2, 15) + field(4, field(1, 1_767_225_600) + field(2, 5_000_000)))
    found = read(envelope("coordination.k8s.io/v1", "Lease", field(1, metadata("l")) + lease))
    assert found["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-01-01T00:00:00.005000Z",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        MAGIC,
        MAGIC + b"\xff",
        MAGIC + field(2, b"\x0a\x7f"),
        envelope("v1", "Nonsense", b""),
        envelope("v1", "Pod", b"\x0a\xff\xff\x01"),
    ],
)
def test_what_is_no_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        as_json(body)
    assert refused.value.code == 400


def test_a_client_that_writes_protobuf_is_served() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            body = envelope("v1", "ConfigMap", field(1, metadata("a")) + field(2, field(1, "k") + field(2, "v")))
            accept = f"{PROTOBUF},application/json"
            found = await api.response(
                "POST", "/api/v1/namespaces/default/configmaps", body, content_type=PROTOBUF, accept=accept
            )
            assert (found.status, found.content_type) == (201, "application/json")
            assert (await api.get("/api/v1/namespaces/default/configmaps/a"))[1]["data"] == {"k": "v"}
            options = envelope("v1", "DeleteOptions", field(1, 0))
            found = await api.response(
                "DELETE", "/api/v1/namespaces/default/configmaps/a", options, content_type=PROTOBUF
            )
            assert found.status == 200

    asyncio.run(play())
