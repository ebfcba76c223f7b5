"""Whether ports open and close with the Gateways that ask for them, and what routers write into the cluster."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.core import Namespace
from hekla.api.crd import CUSTOM_KINDS, crd_document
from hekla.api.foreign import FOREIGN_KINDS, Gateway, GatewayClass, HttpRoute, InferencePool
from hekla.api.kthena import ExternalModelProvider, ModelServer
from hekla.kube.api_client import ApiClient
from hekla.kube.in_process import InProcessTransport
from hekla.serving.provider_status import provider_status
from hekla.serving.router.gateway import GatewayDesk
from hekla.serving.router.gateway_ports import GatewayPorts
from hekla.serving.router.plan import Desk
from hekla.serving.router.providers import Provider
from hekla.serving.router.upkeep import Upkeep
from hekla.testing.server import api_server
from serving.router import proxykit as kit
from serving.router.test_gateway import gateway, listener, pool
from serving.router.test_providers import AUTH, secret
from serving.router.test_running import eventually, routed
from serving.router.worldkit import provider, world

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Door:
    """A listener that notes what it is told; ports in `taken` cannot be opened."""

    taken: set[int] = set()

    def __init__(self, desk: Desk, log: list[str]) -> None:
        assert isinstance(desk, GatewayDesk)
        self._log = log

    async def listen(self, name: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        self._log.append(f"open {port}{' with TLS' if tls else ''}")
        if port in self.taken:
            raise OSError(98, "Address already in use")
        return port

    async def drain(self, timeout_s: float) -> bool:
        self._log.append("drain")
        return True

    def stop(self) -> None:
        self._log.append("stop")


def ports(made: Any, now: Callable[[], float], log: list[str]) -> GatewayPorts:
    make: Any = lambda desk, certificates: Door(desk, log)  # noqa: E731 - a double of the listener
    return GatewayPorts(made, lambda: 0.0, make, host="127.0.0.1", own_ports=lambda: {8080}, now=now)


def test_ports_follow_the_gateways() -> None:
    async def story() -> None:
        log, made = list[str](), world(gateway("gw", listener(port=80), listener("own", port=8080)))
        opened = ports(made, lambda: 0.0, log)
        await opened.look()
        await opened.look()
        assert (log, set(opened.open)) == (["open 80"], {80})
        made.note(None, gateway("gw", listener(port=81)))
        await opened.look()
        assert sorted(log[1:]) == ["open 81", "stop"]
        await opened.drain(1.0)
        opened.stop()
        assert opened.open == {}

    kit.run(story())


def test_a_port_that_is_taken_is_tried_again_later() -> None:
    async def story() -> None:
        log, now, made = list[str](), [0.0], world(gateway("gw", listener(port=80)))
        opened = ports(made, lambda: now[0], log)
        Door.taken = {80}
        await opened.look()
        await opened.look()
        assert log == ["open 80"]
        Door.taken = set()
        now[0] = 6.0
        await opened.look()
        assert set(opened.open) == {80}

    kit.run(story())


@pytest.mark.usefixtures("lane")
def test_a_router_serves_http_routes_of_its_default_gateway(tmp_path: Path) -> None:
    """Kthena GatewayInferenceExtension, BothAPIsConfigured, by sockets."""

    async def story() -> None:
        async with routed(
            tmp_path, kit.whole(), kit.whole(b'{"from":"pool"}'), also_kinds=FOREIGN_KINDS, with_gateways=True
        ) as it:
            await eventually(lambda: "default/default" in it.router.world.gateways)
            engine = it.engines[1]
            beyond = pool("beyond", engine.port)
            spec = msgspec.to_builtins(beyond.spec)
            spec["selector"]["matchLabels"] = {"app": f"port-{engine.port}"}
            spec = {name: value for name, value in spec.items() if value}
            await it.client.create(InferencePool, {"metadata": {"name": "beyond", "namespace": "ml"}, "spec": spec})
            backends = [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "beyond"}]
            routes = {
                "parentRefs": [{"name": "default", "namespace": "default"}],
                "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": backends}],
            }
            await it.client.create(HttpRoute, {"metadata": {"name": "r", "namespace": "ml"}, "spec": routes})
            await eventually(lambda: bool(it.router.world.http_routes) and bool(it.router.world.inference_pools))
            by_pool = await it.ask(kit.chat().replace(b'"m"', b'"x"'))
            assert (by_pool.status, by_pool.body) == (200, b'{"from":"pool"}')
            assert (await it.ask(kit.chat())).status == 200

    kit.run(story())


def test_no_first_gateway_is_made_of_a_class_of_another_controller() -> None:
    async def story() -> None:
        async with api_server(kinds=FOREIGN_KINDS) as server:
            client = ApiClient(InProcessTransport(server.handle))
            theirs = {"metadata": {"name": "kthena-router"}, "spec": {"controllerName": "istio.io/gateway-controller"}}
            made = world(await client.create(GatewayClass, theirs))
            upkeep = Upkeep(client, made, wall=lambda: NOW)
            upkeep.gateway = "default", 8080
            await upkeep.look()
            assert (await client.list(Gateway, "default")).items == []

    asyncio.run(story())


def test_a_providers_status_is_written_once_and_follows_its_secret() -> None:
    async def story() -> None:
        async with api_server() as server:
            client = ApiClient(InProcessTransport(server.handle))
            for kind in CUSTOM_KINDS:
                if kind is ExternalModelProvider:
                    await client.create(CustomResourceDefinition, crd_document(kind))
            await client.create(Namespace, {"metadata": {"name": "ml"}})
            spec = {"baseURL": "https://api.example.com", "auth": AUTH}
            made = world()
            upkeep = Upkeep(client, made, wall=lambda: NOW)
            made.note(
                None,
                await client.create(
                    ExternalModelProvider, {"metadata": {"name": "p", "namespace": "ml"}, "spec": spec}
                ),
            )
            await upkeep.look()
            lacking = await client.get(ExternalModelProvider, "p", "ml")
            assert {one.type: one.reason for one in lacking.status.conditions} == {
                "CredentialsResolved": "CredentialNotFound",
                "Ready": "CredentialNotFound",
            }
            made.note(None, lacking)
            made.note(None, secret())
            await upkeep.look()
            ready = await client.get(ExternalModelProvider, "p", "ml")
            assert {one.type: one.status for one in ready.status.conditions} == {
                "CredentialsResolved": "True",
                "Ready": "True",
            }
            made.note(None, ready)
            await upkeep.look()
            same = await client.get(ExternalModelProvider, "p", "ml")
            assert same.metadata.resource_version == ready.metadata.resource_version

    kit.run(story())


def test_a_provider_that_is_wrong_says_so_beside_its_credential() -> None:
    status = provider_status(Provider.of(provider("p", baseURL="http://x"), {}), NOW)
    assert status is not None
    credentials, ready = status["conditions"]
    assert (credentials["status"], credentials["reason"]) == ("True", "CredentialNotRequired")
    assert (ready["status"], ready["reason"]) == ("False", "ConfigurationInvalid")
    assert "must use https" in ready["message"]


@pytest.mark.usefixtures("lane")
def test_a_servers_bound_of_connections_is_kept_by_the_router(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole()) as it:
            port = it.engines[0].port
            policy = {"spec": {"trafficPolicy": {"connectionPool": {"maxIdleConnectionsPerHost": 0}}}}
            await it.client.patch(ModelServer, "m-0", policy, "ml")
            await eventually(lambda: ("127.0.0.1", port) in it.router.pools.own_bounds)
            for _ in range(3):
                assert (await it.ask(kit.chat())).status == 200
            pool = next(iter(it.router.pools._pools.values()))
            assert (pool.bounds.engine_idle_connections, pool.idle) == (0, [])
            await it.client.patch(ModelServer, "m-0", {"spec": {"trafficPolicy": None}}, "ml")
            await eventually(lambda: not it.router.pools.own_bounds)

    kit.run(story())
