"""Whether listeners for HTTPS show the right certificate: by name, after it was renewed, and none where there is none."""

import asyncio
import base64
import socket
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hekla.api.core import Namespace, Secret
from hekla.api.foreign import FOREIGN_KINDS, Gateway
from hekla.api.kthena import ModelRoute
from hekla.kube.api_client import ApiClient
from hekla.serving.router.certificate_pairs import CertificateError
from hekla.serving.router.certificates import Certificates, context_of
from hekla.serving.router.listeners import doors_by_port
from hekla.serving.router.misdirected import misdirected
from serving.router import proxykit as kit
from serving.router.test_gateway import gateway, listener
from serving.router.test_running import Routed, eventually, routed
from wire.certificates import Authority


def https(name: str, hostname: str | None, secret: str, port: int = 443) -> dict[str, Any]:
    tls = {"certificateRefs": [{"name": secret}]}
    return {**listener(name, port, hostname), "protocol": "HTTPS", "tls": tls}


def pair(authority: Authority, common_name: str) -> dict[str, str]:
    crt, key = authority.issue(common_name)
    return {
        name: base64.b64encode(file.read_bytes()).decode() for name, file in (("tls.crt", crt), ("tls.key", key))
    }  # fmt: skip


def secret(name: str, data: dict[str, str], version: str = "1") -> Secret:
    metadata = {"name": name, "namespace": "ml", "uid": name, "resourceVersion": version}
    return msgspec.convert({"metadata": metadata, "type": "kubernetes.io/tls", "data": data}, Secret)


def shown(certificates: Certificates, host: str | None, authority: Authority) -> str:
    """The name in the certificate that a client is shown, or how it was refused; in memory, without sockets."""
    context = ssl.create_default_context(cafile=str(authority.file))
    context.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(there, back, server_hostname=host)
    server = certificates.context.wrap_bio(back, there, server_side=True)
    ends: list[ssl.SSLObject] = [client, server]
    while ends:
        for one in tuple(ends):
            try:
                one.do_handshake()
                ends.remove(one)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                if one is client:
                    return str(error.reason)
                ends.remove(one)  # its alert is on the way
    return _common_name(client)


def _common_name(connection: Any) -> str:
    certificate = connection.getpeercert()
    return dict(pair for part in certificate["subject"] for pair in part)["commonName"]


def taken(one: Gateway, *secrets: Secret) -> Certificates:
    certificates = Certificates()
    certificates.take(doors_by_port([one])[443], {f"ml/{it.metadata.name}": it for it in secrets}, [])
    return certificates


def test_the_name_that_is_asked_for_chooses_the_certificate(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    one = gateway("gw", https("exact", "a.example", "a"), https("wild", "*.example", "w"))
    made = taken(one, secret("a", pair(ca, "exact")), secret("w", pair(ca, "wild")))
    assert made.troubles == {}
    assert shown(made, "a.example", ca) == "exact"
    assert shown(made, "A.EXAMPLE", ca) == "exact"
    assert shown(made, "b.example", ca) == "wild"
    assert "UNRECOGNIZED_NAME" in shown(made, "elsewhere.test", ca)
    assert "UNRECOGNIZED_NAME" in shown(made, None, ca)


def test_a_listener_without_a_hostname_is_for_all_others(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    one = gateway("gw", https("exact", "a.example", "a"), https("rest", None, "r"))
    made = taken(one, secret("a", pair(ca, "exact")), secret("r", pair(ca, "rest")))
    assert [shown(made, host, ca) for host in ("a.example", "b.example", None)] == ["exact", "rest", "rest"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, 'Secret "ml/a" has no "tls.crt"; a Secret of type kubernetes.io/tls has it'),
        ({"tls.crt": "!"}, 'Secret "ml/a": "tls.crt" is not base64'),
        ({"tls.crt": "eA==", "tls.key": "eA=="}, 'Secret "ml/a": "tls.crt" is no certificate in PEM'),
    ],
)
def test_a_secret_that_cannot_be_shown_is_told_and_nobody_is_shown_another(
    tmp_path: Path, data: dict[str, str], said: str
) -> None:
    ca = Authority(tmp_path)
    one = gateway("gw", https("broken", "a.example", "a"), https("rest", None, "r"))
    with pytest.raises(CertificateError, match="Secret"):
        context_of([secret("a", data)])
    made = taken(one, secret("a", data), secret("r", pair(ca, "rest")))
    assert made.troubles["ml/gw/broken"].startswith(said)
    assert "UNRECOGNIZED_NAME" in shown(made, "a.example", ca), "not the certificate of the listener for all others"


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    mixed = {**pair(ca, "one"), "tls.key": pair(ca, "two")["tls.key"]}
    made = taken(gateway("gw", https("tls", None, "a")), secret("a", mixed))
    assert "holds no certificate and key that fit" in made.troubles["ml/gw/tls"]


def test_a_renewed_secret_is_shown_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    ca, one = Authority(tmp_path), gateway("gw", https("tls", None, "a"))
    made = taken(one, secret("a", pair(ca, "old")))
    assert shown(made, None, ca) == "old"
    doors = doors_by_port([one])[443]
    made.take(doors, {"ml/a": secret("a", pair(ca, "new"), "2")}, [])
    assert shown(made, None, ca) == "new"
    made.take(doors, {}, [])
    assert made.troubles == {"ml/gw/tls": 'Secret "ml/a" does not exist'}
    assert "UNRECOGNIZED_NAME" in shown(made, None, ca)


@pytest.mark.parametrize(
    ("asked", "host", "is_misdirected"),
    [
        ("a.example", "a.example", False),
        ("a.example", "b.example", True),  # the wildcard's
        ("b.example", "c.example", False),  # the wildcard's, too
        ("b.example", "a.example", True),  # more specific than the wildcard
        ("a.example", "elsewhere.test", True),  # of the listener for all others
        ("", "elsewhere.test", False),
        ("", "a.example", True),
    ],
)
def test_a_request_for_another_listeners_host_is_misdirected(
    tmp_path: Path, asked: str, host: str, is_misdirected: bool
) -> None:
    ca = Authority(tmp_path)
    one = gateway("gw", https("exact", "a.example", "a"), https("wild", "*.example", "a"), https("rest", None, "a"))
    refusal = misdirected(taken(one, secret("a", pair(ca, "a"))), asked, host)
    assert (refusal is not None) == is_misdirected
    assert refusal is None or (refusal.status, f'"{host}"' in refusal.message) == (421, True)


def test_a_host_that_no_listener_is_for_is_not_misdirected(tmp_path: Path) -> None:
    """It is not found, on this connection as on any other."""
    made = taken(gateway("gw", https("exact", "a.example", "a")), secret("a", pair(Authority(tmp_path), "a")))
    assert misdirected(made, "a.example", "elsewhere.test") is None


async def put_secret(client: ApiClient, data: dict[str, str], *, is_new: bool) -> None:
    document = {"metadata": {"name": "cert", "namespace": "edge"}, "type": "kubernetes.io/tls", "data": data}
    if is_new:
        await client.create(Secret, document)
    else:
        await client.patch(Secret, "cert", {"data": data}, "edge")


async def asked_over_tls(it: Routed, port: int, ca: Authority, *hosts: str) -> tuple[str, list[int]]:
    """The name in the certificate that a client for `localhost` is shown, and the status of an answer for each host."""
    context = ssl.create_default_context(cafile=str(ca.file))
    streams = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    client = kit.Client(*streams)
    it.clients.append(client)
    asked = [kit.chat().replace(b"Host: router", f"Host: {host}".encode()) for host in hosts or ("localhost",)]
    return _common_name(streams[1].get_extra_info("ssl_object")), [(await client.ask(one)).status for one in asked]


@pytest.mark.usefixtures("lane")
def test_a_router_serves_a_gateway_over_https_and_follows_the_secret(tmp_path: Path) -> None:
    async def story() -> None:
        with socket.socket() as kept:  # the port stays ours until the router has it
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            kept.bind(("127.0.0.1", 0))
            await served(tmp_path, Authority(tmp_path), kept.getsockname()[1])

    async def served(tmp_path: Path, ca: Authority, port: int) -> None:
        told: dict[str, Any] = {"also_kinds": FOREIGN_KINDS, "with_gateways": True, "shares_port": True}
        async with routed(tmp_path, kit.whole(), **told) as it:
            await it.client.create(Namespace, {"metadata": {"name": "edge"}})
            await put_secret(it.client, pair(ca, "old"), is_new=True)
            anybodys = {"allowedRoutes": {"namespaces": {"from": "All"}}}
            listeners = [https("tls", "localhost", "cert", port), https("more", "*.example", "cert", port)]
            spec = {"gatewayClassName": "kthena-router", "listeners": [one | anybodys for one in listeners]}
            await it.client.create(Gateway, {"metadata": {"name": "gw", "namespace": "edge"}, "spec": spec})
            parents = {"spec": {"parentRefs": [{"name": "gw", "namespace": "edge"}]}}
            await it.client.patch(ModelRoute, "m", parents, "ml")
            ports = it.router.gateway_ports
            await eventually(lambda: port in ports.open and not ports.certificates[port].troubles)
            await eventually(lambda: bool(it.router.world.routes.by_key["ml/m"].source.spec.parent_refs))
            assert await asked_over_tls(it, port, ca) == ("old", [200])
            hosts = ("localhost", "localhost:443", "a.example", "elsewhere.test", "LOCALHOST")
            assert await asked_over_tls(it, port, ca, *hosts) == ("old", [200, 200, 421, 404, 200])
            before = ports.certificates[port].context_for("localhost")
            await put_secret(it.client, pair(ca, "new"), is_new=False)
            await eventually(lambda: ports.certificates[port].context_for("localhost") is not before)
            assert await asked_over_tls(it, port, ca) == ("new", [200])

    kit.run(story())
