"""The link of a gateway that runs by itself: HTTPS to the node agent that runs a sandbox's pod, found by objects alone.

    Pod spec.nodeName  ->  Node address, kubeletEndpoint port, annotation hekla.dev/node-authority

Only the authority that a Node names is believed for it. The token that opens nodes is sent to nodes and to nobody else, and no server
inside a sandbox ever sees it: a port inside is reached by a tunnel, whose bytes begin behind the node's answer.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import msgspec

from hekla.api.agents.node_contract import (
    NODE_AUTHORITY,
    TUNNEL,
    Checkpoint,
    CheckpointOrder,
    Child,
    Claim,
    Claimed,
    EgressOrder,
    Forked,
    ForkOrder,
    SandboxState,
    StillnessOrder,
    Usage,
)
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.kube.informer import Informers
from hekla.lib.digits import whole_number
from hekla.sandbox.link import LinkError, SandboxGoneError, TooLateError, UnansweredError, UnsupportedError, Way
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.tls import client_context

T = TypeVar("T")

PATIENCE_S: Final = 60.0
"""For a node's answer."""
CHECKPOINT_PATIENCE_S: Final = 900.0
"""For one that writes down, or copies, as many files as a sandbox may have; the node itself gives up one that does not go on."""
HEAD_START_S: Final = 0.5
"""For the node that a row names; then all others are asked as well."""
_LONGEST_REFUSAL: Final = 16 * 1024


@dataclass(frozen=True)
class NodeAddress:
    """Where a node's endpoint is, and whom to believe there."""

    name: str
    host: str
    port: int
    authority: str = field(repr=False)

    @property
    def url(self) -> str:
        """Of its endpoint."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"


@dataclass(frozen=True)
class _NodeDoor:
    """Connections to one node."""

    address: NodeAddress
    context: ssl.SSLContext
    client: HttpClient


def address_of(node: Node) -> NodeAddress | None:
    """Where a node's endpoint is; None: it is no node of Hekla's, or its agent serves nobody from outside."""
    endpoints = node.status.daemon_endpoints
    port = endpoints.kubelet_endpoint.port if endpoints is not None and endpoints.kubelet_endpoint is not None else 0
    host = next((one.address for one in node.status.addresses if one.type == "InternalIP"), "")
    authority = node.metadata.annotations.get(NODE_AUTHORITY, "")
    return NodeAddress(node.metadata.name, host, port, authority) if port and host and authority else None


class ClusterLink:
    """A `SandboxLink` to the node agents of a cluster. `token` gives the bearer token of now."""

    def __init__(self, informers: Informers, token: Callable[[], str]) -> None:
        self._pods, self._nodes = informers.of(Pod), informers.of(Node)
        self._token = token
        self._doors: dict[str, _NodeDoor] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Wait until pods and nodes are known."""
        await self._pods.synced()
        await self._nodes.synced()

    async def close(self) -> None:
        """Let go of every connection."""
        doors, self._doors = list(self._doors.values()), {}
        await asyncio.gather(*(one.client.close() for one in doors), *self._closing, return_exceptions=True)

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Make a sandbox a session's own; its node may be older, and refuse what it does not know."""
        claim = msgspec.structs.replace(claim, token_key="")
        return await self._act(namespace, pod, "claim", claim, Claimed)

    def expect_claim(self, pod_uid: str, claim: Claim) -> None:
        """Its node is elsewhere, and hears of it when it runs."""

    def let_claim_go(self, pod_uid: str) -> None:
        """Nothing was kept."""

    async def freeze(self, namespace: str, pod: str, order: int) -> None:
        """Let its processes stand still."""
        await self._act(namespace, pod, "freeze", StillnessOrder(order=order), SandboxState)

    async def thaw(self, namespace: str, pod: str, order: int) -> None:
        """Let them go on."""
        await self._act(namespace, pod, "thaw", StillnessOrder(order=order), SandboxState)

    async def checkpoint(self, namespace: str, pod: str, order: CheckpointOrder) -> Checkpoint:
        """Write a checkpoint of it; it lies on its node."""
        return await self._act(namespace, pod, "checkpoint", order, Checkpoint, CHECKPOINT_PATIENCE_S)

    def place(self, namespace: str, pod: str) -> str:
        """The node of its pod; "": several nodes share what lies there."""
        try:
            address = self._address(namespace, pod)
        except LinkError:
            return ""
        return "" if self._is_one_of_many(address) else address.name

    async def node_of(self, checkpoint: str, likely: str = "") -> str:
        """Ask the likely node, then every node: a row may be older than its gateway, and nodes come back under other names.

        The first that has it is enough: one that is switched off answers after its patience. "": several nodes share what lies there.
        """
        path, silent = f"/checkpoints/{checkpoint}", ""
        first, others = self._likely_first(likely)
        asked = self._asking(first, path)
        waiting = set(asked)
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=HEAD_START_S)
            if not any(_says(one, 200) for one in waiting):
                asked |= self._asking(others, path)
                waiting = set(asked)
            while waiting:
                told, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in told:
                    address, error = asked[task], task.exception()
                    status = task.result()[0] if error is None else 0
                    if status == 200:
                        return "" if self._is_one_of_many(address) else address.name
                    if error is not None:
                        silent = str(error)
                    elif status != 404:  # one that could not even ask who calls has not looked
                        silent = f'node "{address.name}" answered {status}'
        finally:
            for task in waiting:
                task.cancel()
        if silent:
            raise UnansweredError(f'checkpoint "{checkpoint}" is on no node that answers: {silent}')
        raise SandboxGoneError(f'checkpoint "{checkpoint}" is on no node: the one that it was on is gone')

    async def drop_checkpoint(self, checkpoint: str, likely: str = "") -> None:
        """Forget a checkpoint, on whichever node it lies: where one had it, no other is waited for.

        Where it is said to lie and does not, nodes that are not ready are left out: one that never comes back would keep it for good.
        """
        trouble: BaseException | None = None
        first, others = self._likely_first(likely)
        for asked in (first, others):
            if asked is others and first and trouble is None:
                asked = [one for one in others if not self._is_silent(one)]
            waiting = {asyncio.create_task(self._dropped(one, checkpoint)) for one in asked}
            try:
                while waiting:
                    told, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    if any(one.exception() is None and one.result() for one in told):
                        return
                    trouble = next((why for one in told if (why := one.exception()) is not None), trouble)
            finally:
                for task in waiting:
                    task.cancel()
        if trouble is not None:
            raise trouble

    async def _dropped(self, address: NodeAddress, checkpoint: str) -> bool:
        """Whether a node had it; LinkError: it does not say."""
        status, body = await self._ask(address, "DELETE", f"/checkpoints/{checkpoint}", b"")
        if status not in (200, 204, 404):
            raise _refusal(address, status, body)
        return status != 404

    async def fork(self, namespace: str, pod: str, children: Awaitable[Sequence[Child]]) -> Forked:
        """Let pods that wait for it begin as copies of this one."""
        return await self._act(
            namespace, pod, "fork", ForkOrder(children=list(await children)), Forked, CHECKPOINT_PATIENCE_S
        )

    async def restrict(self, namespace: str, pod: str, allowed: str) -> None:
        """Other destinations from now on."""
        await self._act(namespace, pod, "egress", EgressOrder(allow=allowed), SandboxState)

    async def usage(self, namespace: str, pod: str) -> Usage:
        """What it has used."""
        address = self._address(namespace, pod)
        status, body = await self._ask(address, "GET", f"/sandboxes/{namespace}/{pod}/usage", b"")
        return _read(address, status, body, Usage)

    def way(self, namespace: str, pod: str, port: int) -> Way:
        """A tunnel through the node."""

        async def connect(make: Callable[[], asyncio.Protocol]) -> None:
            await self._tunnel(self._address(namespace, pod), f"/sandboxes/{namespace}/{pod}/ports/{port}", make)

        return Way(connect)

    async def _act(
        self, namespace: str, pod: str, action: str, body: object, answers: type[T], patience_s: float = PATIENCE_S
    ) -> T:
        address = self._address(namespace, pod)
        path = f"/sandboxes/{namespace}/{pod}/{action}"
        status, answer = await self._ask(address, "POST", path, msgspec.json.encode(body), patience_s)
        return _read(address, status, answer, answers)

    def _address(self, namespace: str, name: str) -> NodeAddress:
        pod = self._pods.cache.get(namespace, name)
        if pod is None:
            raise SandboxGoneError(f'pod "{name}" of namespace "{namespace}" is gone')
        node = self._nodes.cache.get("", pod.spec.node_name) if pod.spec.node_name else None
        if node is None:
            raise LinkError(f'pod "{name}" is on no node that is known ("{pod.spec.node_name}")')
        address = address_of(node)
        if address is None:
            raise LinkError(
                f'node "{node.metadata.name}" names no endpoint for gateways (annotation {NODE_AUTHORITY}); '
                "sandboxes run on nodes of `hekla run node` and `hekla up --without agents`"
            )
        return address

    def _addresses(self) -> list[NodeAddress]:
        """Of every agent."""
        found = {one.url: one for node in self._nodes.cache if (one := address_of(node)) is not None}
        return list(found.values())

    def _asking(self, addresses: list[NodeAddress], path: str) -> dict[asyncio.Task[tuple[int, bytes]], NodeAddress]:
        return {asyncio.create_task(self._ask(one, "GET", path, b"")): one for one in addresses}

    def _likely_first(self, likely: str) -> tuple[list[NodeAddress], list[NodeAddress]]:
        """Of the node that is likely to know, and of all others."""
        found = self._addresses()
        first = [one for one in found if one.name == likely]
        return first, [one for one in found if one.name != likely]

    def _is_silent(self, address: NodeAddress) -> bool:
        """Whether its node is known not to be ready."""
        node = self._nodes.cache.get("", address.name)
        return node is not None and any(one.type == "Ready" and one.status != "True" for one in node.status.conditions)

    def _is_one_of_many(self, address: NodeAddress) -> bool:
        """Whether the agent has other nodes, too, which share what lies on its disk."""
        found = (address_of(node) for node in self._nodes.cache)
        return sum(one is not None and one.url == address.url for one in found) > 1

    def _door(self, address: NodeAddress) -> _NodeDoor:
        """Kept for as long as the node says the same of itself."""
        door = self._doors.get(address.name)
        if door is None or door.address != address:
            if door is not None:
                closing = asyncio.get_running_loop().create_task(door.client.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            try:
                context = client_context(ca_data=address.authority)
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a node may name its certificate itself
            except (ssl.SSLError, ValueError) as error:
                raise LinkError(f'node "{address.name}" names an authority that is none: {error}') from None
            door = self._doors[address.name] = _NodeDoor(address, context, HttpClient(ssl_context=context))
        return door

    async def _ask(
        self, address: NodeAddress, method: str, path: str, body: bytes, patience_s: float = PATIENCE_S
    ) -> tuple[int, bytes]:
        headers = (("authorization", f"Bearer {self._token()}"), ("content-type", "application/json"))
        try:
            answer = await self._door(address).client.request(method, address.url + path, headers, body, patience_s)
        except WireError as error:
            raise UnansweredError(f'node "{address.name}" does not answer: {error}') from error
        assert isinstance(answer.body, bytes)  # `request` answers whole
        return answer.status, answer.body

    async def _tunnel(self, address: NodeAddress, path: str, make: Callable[[], asyncio.Protocol]) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {address.name}\r\nauthorization: Bearer {self._token()}\r\n"
            f"connection: upgrade\r\nupgrade: {TUNNEL}\r\ncontent-length: 0\r\n\r\n"
        )
        opening = _Opening(head.encode("latin-1"))
        loop, context = asyncio.get_running_loop(), self._door(address).context
        try:
            await loop.create_connection(lambda: opening, address.host, address.port, ssl=context)
        except OSError as error:  # not one of the sandbox's: nobody inside refused
            raise LinkError(f'node "{address.name}" does not answer: {error.strerror or error}') from error
        try:
            status, body = await opening.answered
        except BaseException:
            opening.transport.abort()
            raise
        if status != 101:
            opening.transport.abort()
            raise _refusal(address, status, body)
        opening.become(make())


class _Opening(asyncio.Protocol):
    """A tunnel that is being opened: sends the request, reads the answer, and leaves the connection to somebody else."""

    def __init__(self, head: bytes) -> None:
        self._head, self._read = head, b""
        self._successor: asyncio.Protocol | None = None
        self.transport: asyncio.Transport
        self.answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        """The answer, and perhaps first bytes from inside."""
        self._read += data
        head, end, rest = self._read.partition(b"\r\n\r\n")
        if self.answered.done() or not end:
            if len(self._read) > _LONGEST_REFUSAL and not self.answered.done():
                self._fail("its answer is too long")
            return
        if not head.startswith(b"HTTP/1.1 ") or not head[9:12].isdigit():
            self._fail("it does not speak HTTP/1.1")
        elif head[9:12] == b"101":
            self._read = rest
            self.answered.set_result((101, b""))
        elif len(rest) >= _length(head):
            self.answered.set_result((int(head[9:12]), rest))

    def become(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection on, with what came already."""
        data, self._read = self._read, b""
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if data:
            protocol.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """It ended before it began."""
        self._fail("it closed the connection")

    def _fail(self, why: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(LinkError(f"the node opened no tunnel: {why}"))


def _says(task: "asyncio.Task[tuple[int, bytes]]", status: int) -> bool:
    return task.done() and task.exception() is None and task.result()[0] == status


def _length(head: bytes) -> int:
    """Of an answer's body, as its head says; one without a length has none that we wait for."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and (length := whole_number(value.strip().decode("latin-1"))) is not None:
            return min(length, _LONGEST_REFUSAL)
    return 0


def _read(address: NodeAddress, status: int, body: bytes, answers: type[T]) -> T:
    if status != 200:
        raise _refusal(address, status, body)
    try:
        return msgspec.json.decode(body, type=answers)
    except msgspec.DecodeError as error:
        raise UnansweredError(f'node "{address.name}" answered what makes no sense: {error}') from error


def _refusal(address: NodeAddress, status: int, body: bytes) -> Exception:
    """As the node of the same process would refuse it."""
    try:
        found: Any = json.loads(body)
        sentence = str(found["message"])
    except (ValueError, KeyError, TypeError):
        sentence = f'node "{address.name}" answered {status}'
    if status == 401:
        return LinkError(
            f'node "{address.name}" does not let this gateway in: the token of --node-token must not have run out, must be '
            "for the audience hekla-nodes, and needs the right to create nodes/proxy"
        )
    if status == 502:
        return ConnectionRefusedError(sentence)
    kind = {404: SandboxGoneError, 409: TooLateError, 412: UnsupportedError}.get(status, LinkError)
    return kind(sentence)
