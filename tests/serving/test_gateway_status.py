"""Whether the Gateway API's objects say what became of them, with the reasons that the API knows."""

import asyncio
import base64
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from hekla.api.core import Namespace, Secret
from hekla.api.foreign import Gateway, GatewayClass, HttpRoute, InferencePool, ReferenceGrant
from hekla.api.meta import Resource
from hekla.apiserver.server import ApiServer
from hekla.kube.api_client import ApiClient
from hekla.kube.informer import Informers
from hekla.kube.reconcile import Reconciler
from hekla.serving.gateway_status import (
    reconcile_gateway,
    reconcile_gateway_class,
    reconcile_http_route,
    reconcile_inference_pool,
)
from hekla.serving.listener_status import CertificateSecret
from hekla.testing.server import api_server, http_client, in_process_client
from hekla.testing.world import FakeWorld
from wire.certificates import Authority

NOW, LATER = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
POOL = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "pool"}
Connected = Callable[[ApiServer], AbstractAsyncContextManager[ApiClient]]
BY_KIND: dict[type[Resource], Reconciler] = {
    GatewayClass: reconcile_gateway_class,
    Gateway: reconcile_gateway,
    HttpRoute: reconcile_http_route,
    InferencePool: reconcile_inference_pool,
}


def thing(
    kind: type[Resource], name: str, spec: Any, namespace: str = "ml", day: int = 1, **more: Any
) -> dict[str, Any]:
    info = kind.kind_info
    metadata = {
        "name": name,
        "uid": f"{info.kind}/{name}",
        "generation": 1,
        "creationTimestamp": f"2026-01-0{day}T00:00:00Z",
    }
    metadata |= {"namespace": namespace} if info.is_namespaced else {}
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec, **more}


def gateway(name: str = "gw", *listeners: dict[str, Any], of: str = "kthena-router", **more: Any) -> dict[str, Any]:
    spec = {"gatewayClassName": of, "listeners": list(listeners) or [listener()]}
    return thing(Gateway, name, spec, **more)


def listener(name: str = "http", port: int = 80, protocol: str = "HTTP", **more: Any) -> dict[str, Any]:
    return {"name": name, "port": port, "protocol": protocol, **more}


def route(*rules: dict[str, Any], parents: Any = None, namespace: str = "ml", **more: Any) -> dict[str, Any]:
    spec = {"parentRefs": parents or [{"name": "gw"}], "rules": list(rules) or [{"backendRefs": [POOL]}], **more}
    return thing(HttpRoute, "r", spec, namespace)


POOL_OBJECT = thing(InferencePool, "pool", {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 8000}]})
SPACES = [thing(Namespace, name, {}) for name in ("ml", "other")]


def status(kind: type[Any], name: str, *objects: dict[str, Any], namespace: str = "ml") -> Any:
    world = FakeWorld(*objects, *SPACES)
    where = namespace if kind.kind_info.is_namespaced else ""
    one = world.get(kind, where, name)
    world.execute(BY_KIND[kind].decide(one, world, NOW))
    again = world.get(kind, where, name)
    assert again is not None
    assert not list(BY_KIND[kind].decide(again, world, LATER)), "a second look changes nothing"
    return again.status


def said(conditions: Any) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in conditions}


def route_said(*objects: dict[str, Any], namespace: str = "ml") -> dict[str, tuple[str, str]]:
    (parent,) = status(HttpRoute, "r", *objects, namespace=namespace).parents
    assert parent.controller_name == "volcano.sh/kthena-router"
    return said(parent.conditions)


def test_our_class_is_accepted_and_no_other() -> None:
    ours = thing(GatewayClass, "kthena-router", {"controllerName": "volcano.sh/kthena-router"})
    assert said(status(GatewayClass, "kthena-router", ours).conditions) == {"Accepted": ("True", "Accepted")}
    alias = thing(GatewayClass, "inference", {"controllerName": "volcano.sh/kthena-router"})
    assert said(status(GatewayClass, "inference", alias).conditions) == {"Accepted": ("True", "Accepted")}
    other = thing(GatewayClass, "istio", {"controllerName": "istio.io/gateway-controller"})
    assert status(GatewayClass, "istio", other).conditions == []
    assert status(Gateway, "gw", gateway(of="istio")).conditions == []


def test_a_gateway_is_programmed_and_counts_its_routes() -> None:
    told = status(Gateway, "gw", gateway(), route(), POOL_OBJECT)
    assert said(told.conditions) == {"Accepted": ("True", "Accepted"), "Programmed": ("True", "Programmed")}
    (one,) = told.listeners
    assert one.attached_routes == 1
    assert said(one.conditions)["Conflicted"] == ("False", "NoConflicts")
    assert [kind.kind for kind in one.supported_kinds] == ["HTTPRoute", "ModelRoute"]


def test_listeners_that_cannot_be_served_are_named() -> None:
    told = status(Gateway, "gw", gateway("gw", listener(), listener("tcp", 443, "TCP")))
    assert said(told.conditions)["Accepted"] == ("True", "ListenersNotValid")
    assert said(told.listeners[1].conditions)["Accepted"] == ("False", "UnsupportedProtocol")
    alone = status(Gateway, "gw", gateway("gw", listener("tcp", 443, "TCP")))
    assert said(alone.conditions) == {"Accepted": ("False", "ListenersNotValid"), "Programmed": ("False", "Invalid")}


def test_of_two_listeners_on_one_port_the_older_is_served() -> None:
    old, young = gateway("old", day=1), gateway("gw", day=2)
    told = status(Gateway, "gw", old, young)
    assert said(told.listeners[0].conditions)["Conflicted"] == ("True", "HostnameConflict")
    assert 'Gateway "ml/old" has port 80 already' in told.listeners[0].conditions[0].message
    assert said(status(Gateway, "old", old, young).conditions)["Accepted"] == ("True", "Accepted")


def https(*names: str, namespace: str | None = None, **tls: Any) -> dict[str, Any]:
    references = [{"name": one} | ({"namespace": namespace} if namespace else {}) for one in names]
    return listener("tls", 443, "HTTPS", tls={"certificateRefs": references, **tls})


@cache
def pair(number: int = 0) -> Mapping[str, str]:
    """A certificate and its key as a Secret has them; another number is another pair."""
    with TemporaryDirectory() as folder:
        files = Authority(Path(folder)).issue(f"pair {number}")
        return {
            key: base64.b64encode(file.read_bytes()).decode()
            for key, file in zip(("tls.crt", "tls.key"), files, strict=True)
        }


VERSION_3, VERSION_8 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"
EC_KEY, OTHER_KEY = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01", b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x09"


def altered(old: bytes, new: bytes) -> str:
    """The certificate as nobody can have signed it, in the form that a Secret has."""
    whole = ssl.PEM_cert_to_DER_cert(base64.b64decode(pair()["tls.crt"]).decode())
    assert old in whole
    return base64.b64encode(ssl.DER_cert_to_PEM_cert(whole.replace(old, new)).encode()).decode()


def secret(name: str, namespace: str = "ml", kind: str = "kubernetes.io/tls", **data: str | None) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}"}
    told = {"tls.crt" if key == "crt" else "tls.key": value for key, value in data.items()}
    held = {key: value for key, value in {**pair(), **told, "ca.crt": "eA=="}.items() if value is not None}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": held}


def grant(kind: str, to: str, name: str | None = None, *, group: str = "", by: str = "ml") -> dict[str, Any]:
    who = {"group": "gateway.networking.k8s.io", "kind": kind, "namespace": by}
    spec = {"from": [who], "to": [{"group": group, "kind": to} | ({"name": name} if name else {})]}
    return thing(ReferenceGrant, "g", spec, "other")


def https_said(one: dict[str, Any], *objects: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return said(status(Gateway, "gw", gateway("gw", one), *objects).listeners[0].conditions)


def test_a_listener_of_https_needs_certificates_that_are_there() -> None:
    assert https_said(https("cert"), secret("cert")) == {
        "Accepted": ("True", "Accepted"),
        "Programmed": ("True", "Programmed"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
        "Conflicted": ("False", "NoConflicts"),
    }
    for lacking in (https("cert"), https()):
        told = https_said(lacking)
        assert told["ResolvedRefs"] == ("False", "InvalidCertificateRef")
        assert told["Programmed"] == ("False", "Invalid")
    assert https_said(https("cert", mode="Passthrough"), secret("cert"))["Accepted"] == ("False", "UnsupportedValue")


@pytest.mark.parametrize(
    ("broken", "said_of_it"),
    [
        (secret("cert", crt="!"), '"tls.crt" is not base64'),
        (secret("cert", crt="eA=="), '"tls.crt" is no certificate in PEM'),
        (secret("cert", key=None), 'has no "tls.key"'),
        (secret("cert", key="eA=="), '"tls.key" is no private key in PEM'),
        (secret("cert", key=pair(1)["tls.key"]), "begins with a certificate of another key"),
        (secret("cert", crt="é"), '"tls.crt" is not base64'),
        (secret("cert", crt=altered(VERSION_3, VERSION_8)), '"tls.crt" is no certificate in PEM'),
        (secret("cert", crt=altered(EC_KEY, OTHER_KEY)), '"tls.crt" has a key of a kind that cannot be shown'),
        (secret("cert", kind="Opaque"), "is of type Opaque; make it of type kubernetes.io/tls"),
    ],
)
def test_a_certificate_that_cannot_be_shown_is_told_in_the_status(broken: dict[str, Any], said_of_it: str) -> None:
    whole, half = https("cert"), listener("plain", 80)
    told = status(Gateway, "gw", gateway("gw", whole, half), broken)
    seen = {one.type: one for one in told.listeners[0].conditions}
    assert (seen["ResolvedRefs"].status, seen["ResolvedRefs"].reason) == ("False", "InvalidCertificateRef")
    assert said_of_it in seen["ResolvedRefs"].message
    assert (seen["Programmed"].status, seen["Programmed"].reason) == ("False", "Invalid")
    assert seen["Programmed"].message == seen["ResolvedRefs"].message
    assert said(told.conditions)["Programmed"] == ("True", "Programmed"), "the other listener is served"
    assert "tls" in next(one.message for one in told.conditions if one.type == "Accepted")
    mended = status(Gateway, "gw", gateway("gw", whole), secret("cert"))
    assert said(mended.listeners[0].conditions)["ResolvedRefs"] == ("True", "ResolvedRefs")


APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.mark.parametrize("connected", [in_process_client, http_client])
def test_of_a_secret_nothing_is_kept_but_what_is_wrong_with_it(connected: Connected) -> None:
    """Listed in pages by the one client and streamed to the other; then heard of by the watch."""

    async def story() -> None:
        async with api_server() as server, connected(server) as client, Informers(client) as informers:
            fits, other = secret("fits", "default"), secret("other", "default", key=pair(1)["tls.key"])
            for one in (fits, other):
                one["metadata"]["annotations"] = {APPLIED: msgspec.json.encode(one["data"]).decode()}
            await client.create(Secret, fits, "default")
            cache = informers.of(CertificateSecret).cache
            async with asyncio.timeout(60):
                await informers.synced()
                listed = cache.get("default", "fits")
                await client.create(Secret, other, "default")
                while (heard := cache.get("default", "other")) is None:
                    await asyncio.sleep(0.005)
            assert listed is not None
            kept = msgspec.json.encode([listed, heard]).decode()
            for held in (*pair().values(), *pair(1).values(), APPLIED):
                assert held not in kept
            assert listed.complaint == ""
            assert "begins with a certificate of another key" in heard.complaint

    asyncio.run(story())


def test_a_key_behind_a_password_is_told_so() -> None:
    key = load_pem_private_key(base64.b64decode(pair()["tls.key"]), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    one = gateway("gw", https("cert"))
    told = status(Gateway, "gw", one, secret("cert", key=base64.b64encode(locked).decode()))
    assert any("is encrypted; store it without a password" in c.message for c in told.listeners[0].conditions)


def test_a_certificate_of_another_namespace_needs_its_grant() -> None:
    there, theirs = https("cert", namespace="other"), secret("cert", "other")
    assert https_said(there, theirs)["ResolvedRefs"] == ("False", "RefNotPermitted")
    assert https_said(there, theirs, grant("Gateway", "Secret"))["ResolvedRefs"] == ("True", "ResolvedRefs")
    other_name = grant("Gateway", "Secret", "another")
    assert https_said(there, theirs, other_name)["ResolvedRefs"] == ("False", "RefNotPermitted")


def test_a_port_has_one_protocol_and_the_older_gateways_holds() -> None:
    old, young = gateway("old", listener(port=443), day=1), gateway("gw", https("cert"), day=2)
    (one,) = status(Gateway, "gw", old, young, secret("cert")).listeners
    assert said(one.conditions)["Conflicted"] == ("True", "ProtocolConflict")
    assert 'listener "http" of Gateway "ml/old" speaks HTTP on port 443' in {c.message for c in one.conditions}


def test_a_backend_of_another_namespace_needs_its_grant() -> None:
    theirs = thing(InferencePool, "pool", POOL_OBJECT["spec"], "other")
    elsewhere = route({"backendRefs": [{**POOL, "namespace": "other"}]})
    given = grant("HTTPRoute", "InferencePool", group="inference.networking.k8s.io")
    assert route_said(gateway(), elsewhere, theirs)["ResolvedRefs"] == ("False", "RefNotPermitted")
    assert route_said(gateway(), elsewhere, theirs, given)["ResolvedRefs"] == ("True", "ResolvedRefs")
    assert route_said(gateway(), elsewhere, given)["ResolvedRefs"] == ("False", "BackendNotFound")
    (parent,) = status(InferencePool, "pool", gateway(), elsewhere, theirs, given, namespace="other").parents
    assert parent.parent_ref.name == "gw"
    assert status(InferencePool, "pool", gateway(), elsewhere, theirs, namespace="other").parents == []


def test_a_route_is_accepted_and_its_backends_are_looked_for() -> None:
    assert route_said(gateway(), route(), POOL_OBJECT) == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
    }
    assert route_said(gateway(), route())["ResolvedRefs"] == ("False", "BackendNotFound")
    service = route({"backendRefs": [{"name": "svc", "port": 80}]})
    assert route_said(gateway(), service)["ResolvedRefs"] == ("False", "InvalidKind")
    elsewhere = route({"backendRefs": [{**POOL, "namespace": "other"}]})
    assert route_said(gateway(), elsewhere)["ResolvedRefs"] == ("False", "RefNotPermitted")


def test_a_route_that_no_listener_takes_says_why() -> None:
    here = gateway("gw", listener(hostname="a.example"))
    assert route_said(here, route(hostnames=["b.example"]))["Accepted"] == ("False", "NoMatchingListenerHostname")
    nowhere = route(parents=[{"name": "gw", "sectionName": "x"}])
    assert route_said(here, nowhere)["Accepted"] == ("False", "NoMatchingParent")
    guest = route(parents=[{"name": "gw", "namespace": "ml"}], namespace="other")
    assert route_said(here, guest, namespace="other")["Accepted"] == ("False", "NotAllowedByListeners")
    mirror = route({"filters": [{"type": "RequestMirror"}], "backendRefs": [POOL]})
    assert route_said(gateway(), mirror, POOL_OBJECT)["Accepted"] == ("False", "UnsupportedValue")


def test_other_controllers_parts_of_a_status_are_left_alone() -> None:
    theirs = {"parentRef": {"name": "istio"}, "controllerName": "istio.io/gateway-controller", "conditions": []}
    one = route()
    one["status"] = {"parents": [theirs]}
    told = status(HttpRoute, "r", gateway(), one, POOL_OBJECT)
    assert [parent.controller_name for parent in told.parents] == [
        "istio.io/gateway-controller",
        "volcano.sh/kthena-router",
    ]
    unrelated = status(HttpRoute, "r", gateway(of="istio"), one, POOL_OBJECT)
    assert [parent.controller_name for parent in unrelated.parents] == ["istio.io/gateway-controller"]


@pytest.mark.parametrize(("of", "controller", "is_ours"), [
    ("inference", "volcano.sh/kthena-router", True), ("kthena-router", "istio.io/gateway-controller", False),
    ("kthena-router", "volcano.sh/kthena-router", True), ("inference", "istio.io/gateway-controller", False),
])  # fmt: skip
def test_a_class_is_whose_controller_it_names_whatever_it_is_called(of: str, controller: str, *, is_ours: bool) -> None:
    """Gateways of the class `kthena-router` were ours even where it was another controller's, and those of our others nobody's."""
    world = (thing(GatewayClass, of, {"controllerName": controller}), gateway(of=of), route(), POOL_OBJECT)
    assert bool(status(Gateway, "gw", *world).conditions) is is_ours
    assert bool(status(HttpRoute, "r", *world).parents) is is_ours
    assert bool(status(InferencePool, "pool", *world).parents) is is_ours


def test_a_pool_says_which_gateways_send_to_it() -> None:
    (parent,) = status(InferencePool, "pool", gateway(), route(), POOL_OBJECT).parents
    assert (parent.parent_ref.name, parent.parent_ref.namespace) == ("gw", "ml")
    assert said(parent.conditions) == {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("True", "ResolvedRefs")}
    assert status(InferencePool, "pool", gateway(), POOL_OBJECT).parents == []


def test_a_namespace_that_is_let_in_by_its_labels_wakes_its_routes_and_their_gateways() -> None:
    world = FakeWorld(route(parents=[{"name": "gw", "namespace": "web"}]), *SPACES)
    ml, other = (world.get(Namespace, "", name) for name in ("ml", "other"))
    assert list(reconcile_http_route.finds[Namespace](ml, world)) == [("ml", "r")]
    assert list(reconcile_gateway.finds[Namespace](ml, world)) == [("web", "gw")]
    assert not list(reconcile_gateway.finds[Namespace](other, world))
