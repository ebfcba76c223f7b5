"""The gateway of the embedded platform: on loopback, for the sandboxes that run here; `hekla status` shows where.

Its link calls the node agent of this process; a platform without one (`--without node`) has a gateway that says so.
"""

import os
import time

import structlog

from hekla.api.agents import CodeInterpreter
from hekla.app.agents_keeping import follow_keys, made_once, session_store
from hekla.app.agents_metrics import gateway_told
from hekla.app.features import Features
from hekla.app.front_doors import url_of
from hekla.app.node_link import NodeLink
from hekla.kube.client import Client
from hekla.kube.errors import AlreadyExistsError
from hekla.kube.informer import Informers
from hekla.sandbox.gateway.guard import Guard, read_keys
from hekla.sandbox.gateway.minting import Mint, new_private_key
from hekla.sandbox.gateway.running import Gateway, GatewaySettings
from hekla.sandbox.sessions.kube_stock import KubeStock

log = structlog.get_logger(__name__)

FIRST_INTERPRETERS = ("base", "code-interpreter-v1")
"""What E2B's clients ask for when their users name no template."""


async def run_embedded_gateway(features: Features, informers: Informers) -> None:
    """Serve until cancelled whoever comes by its door."""
    directory, door = features.directory, features.doors["agents"]
    await _make_first_interpreters(informers.client)
    stock = KubeStock(informers, makes_pods=True)
    await stock.start()
    features.on_sandbox_ready = stock.is_ready_at_node
    store = session_store(directory.agents_state, os.environ)
    guard = Guard(read_keys(directory.agents_key.read_text()), wall=time.time)
    mint = Mint(made_once(directory.pki / "sandboxes.key", new_private_key))
    gateway = Gateway(
        GatewaySettings(),
        store=store, stock=stock, link=NodeLink(lambda: features.sandboxes), guard=guard, mint=mint, named=stock,
    )  # fmt: skip
    features.is_making_sessions = gateway.desk.was_making
    try:
        await gateway.start(door=door)
        log.info("gateway of sandboxes is ready", url=url_of(door))
        with gateway_told(gateway):
            await follow_keys(directory.agents_key, guard)
    finally:
        await gateway.stop()
        await stock.stop()
        await store.close()


async def _make_first_interpreters(client: Client) -> None:
    for name in FIRST_INTERPRETERS:
        try:
            await client.create(CodeInterpreter, {"metadata": {"name": name}, "spec": {"template": {}}}, "default")
        except AlreadyExistsError:
            log.debug("exists already", name=name)
