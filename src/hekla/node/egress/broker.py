"""The proxy that one sandbox goes out through: CONNECT for tunnels, plain HTTP for the rest, and secrets that are added outside.

It accepts from a socket that listens on the sandbox's own loopback, so whoever connects is that sandbox. Each decision is a line of the audit log.
Bounds: connections at a time, the head's length, time to connect, time without a byte. A sandbox never hears more than a status and a sentence.
"""

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

import structlog

from hekla.api.agents.egress import HTTP, Rule, canonical
from hekla.api.agents.node_contract import SecretHeader
from hekla.lib.digits import whole_number
from hekla.node.egress.rules import ALLOWED, LONGEST_HOST, Address, Verdict, header_for, judge, judge_address

log = structlog.get_logger("hekla.egress")

PORT = 3128
MOST_CONNECTIONS = 256
LONGEST_HEAD = 32 * 1024
HEAD_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 10.0
IDLE_S = 300.0
FULL_SAID_EVERY_S = 60.0
"""That connections are turned away is a line of the log as well, and they wait for no turn."""
PIECE = 64 * 1024
DECISIONS_AT_ONCE, DECISIONS_PER_S = 1000, 20.0
"""Each is a line of the log, so one that asks without end waits: 0.5 GB a day at the most."""
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}")
"""A token of RFC 9110, of a length that is fit for the log."""
_NAMED = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:")
"""How each header's line begins: a server that trims a name's end, or takes a line without a colon, reads another one than we."""
DROPPED = frozenset((b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive", b"te", b"upgrade"))

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a name."""
SecretOf = Callable[[SecretHeader], Awaitable[str]]
"""The value of a secret now; raises LookupError, SecretAwayError, and ValueError for one that is no text."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """By the node's own resolver."""
    rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


@dataclass
class Traffic:
    """Bytes of one sandbox, both ways, and what was refused."""

    sent: int = 0
    received: int = 0
    refused: dict[str, int] = field(default_factory=dict)


class SecretAwayError(Exception):
    """Nobody can be asked for it now."""


class RefusedError(Exception):
    """What the sandbox hears."""

    def __init__(self, status: int, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.status, self.verdict = status, verdict


@dataclass(frozen=True)
class _Asked:
    method: str
    host: str
    port: int
    head: bytes
    """What is sent on: empty for a tunnel."""
    is_tunnel: bool


class EgressBroker:
    """One sandbox's."""

    def __init__(
        self,
        subject: str,
        rules: Sequence[Rule],
        secrets: Sequence[SecretHeader] = (),
        *,
        secret_of: SecretOf | None = None,
        resolver: Resolve = resolve,
        address_verdict: Callable[[Address], Verdict] = judge_address,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`subject` names the sandbox in the audit log. `address_verdict` is another one only in tests, whose servers are local."""
        self._subject, self._rules, self._secrets = subject, tuple(rules), tuple(secrets)
        self._secret_of, self._resolve, self._judge_address, self._tls = secret_of, resolver, address_verdict, tls
        self.traffic = Traffic()
        self._tasks: dict[asyncio.Task[None], tuple[str, int]] = {}
        self._next_at = float("-inf")
        """When the next decision would be due, if they came at their steady pace: by so much a burst is ahead."""
        self._full_said_at = float("-inf")
        """When the log heard last that one was turned away."""
        self._server: asyncio.Server | None = None

    async def serve(self, listening: socket.socket) -> None:
        """Accept from a socket of the sandbox's."""
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=LONGEST_HEAD)

    def change(self, rules: Sequence[Rule]) -> None:
        """Other rules from now on; connections that they do not allow are cut."""
        self._rules = tuple(rules)
        for task, (host, port) in list(self._tasks.items()):
            if host and not judge(self._rules, host, port).is_allowed:
                log.info("egress", sandbox=self._subject, host=host[:LONGEST_HOST], port=port, allowed=False, reason="cut",
                         message="the rules changed, and do not name it any more")  # fmt: skip
                task.cancel()

    async def close(self) -> None:
        """Cut everything."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        if len(self._tasks) >= MOST_CONNECTIONS:
            self._turn_away(writer)
            return
        self._tasks[task] = ("", 0)
        try:
            await self._serve_one(task, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, TimeoutError):
            pass  # either side left, or the rules changed
        finally:
            self._tasks.pop(task, None)
            writer.transport.abort() if task.cancelling() else writer.close()

    def _turn_away(self, writer: asyncio.StreamWriter) -> None:
        """One too many: told at once, and the log hears of the first in a minute."""
        refusal = RefusedError(503, Verdict("too-many", f"{MOST_CONNECTIONS} connections are open; close some"))
        self._tell(writer, refusal)
        now = asyncio.get_running_loop().time()
        if now - self._full_said_at >= FULL_SAID_EVERY_S:
            self._full_said_at = now
            log.info("egress", sandbox=self._subject, allowed=False, reason="too-many", message=str(refusal))
        writer.close()

    async def _serve_one(
        self, task: "asyncio.Task[None]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        asked: _Asked | None = None
        try:
            asked = _read_head(await self._head(reader))
            self._tasks[task] = (asked.host, asked.port)
            self._check(asked)
            secrets = () if asked.is_tunnel else header_for(self._secrets, asked.host)
            addresses = await self._addresses(asked.host, _port(asked, secrets))
            head = await self._with_secrets(asked, secrets)
            inner_reader, inner_writer, address = await self._connect(asked, addresses, secrets)
        except RefusedError as refusal:
            self._refuse(writer, refusal, asked)
            await writer.drain()
            return
        log.info("egress", sandbox=self._subject, host=asked.host, port=asked.port, address=address, method=asked.method,
                 with_secrets=[one.header for one in secrets], allowed=True)  # fmt: skip
        try:
            if asked.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                inner_writer.write(head)
            await self._both_ways(reader, writer, inner_reader, inner_writer)
        finally:
            inner_writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        """The first request's head, in its turn: a line of the log becomes of it, whatever it is."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except (TimeoutError, asyncio.LimitOverrunError):
            head = b""
        await self._turn()
        if not head:
            raise RefusedError(400, Verdict("bad-request", "the request's head is too long, or came too slowly"))
        return head

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next_at = max(self._next_at, now - DECISIONS_AT_ONCE / DECISIONS_PER_S) + 1 / DECISIONS_PER_S
        if self._next_at > now:
            await asyncio.sleep(self._next_at - now)

    def _check(self, asked: _Asked) -> None:
        verdict = judge(self._rules, asked.host, asked.port)
        if not verdict.is_allowed:
            raise RefusedError(403, verdict)

    def _refuse(self, writer: asyncio.StreamWriter, refusal: RefusedError, asked: _Asked | None) -> None:
        code = refusal.verdict.code
        self._tell(writer, refusal)
        where = {} if asked is None else {"host": asked.host[:LONGEST_HOST], "port": asked.port, "method": asked.method}
        log.info("egress", sandbox=self._subject, **where, allowed=False, reason=code, message=str(refusal))

    def _tell(self, writer: asyncio.StreamWriter, refusal: RefusedError) -> None:
        code = refusal.verdict.code
        self.traffic.refused[code] = self.traffic.refused.get(code, 0) + 1
        body = f"{refusal}\n".encode()
        writer.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\nx-hekla-egress: %s\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (refusal.status, _phrase(str(refusal)), code.encode(), len(body), body)
        )

    async def _connect(
        self, asked: _Asked, addresses: Sequence[str], secrets: Sequence[SecretHeader]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        """To an address that was judged, and to no name."""
        port = _port(asked, secrets)
        problem: OSError | TimeoutError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    context = (self._tls or ssl.create_default_context()) if secrets else None
                    name = canonical(asked.host) if context else None
                    reader, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=name)
                    return reader, writer, address
            except (OSError, TimeoutError) as failure:
                problem = failure
        raise RefusedError(
            502, Verdict("unreachable", f"{asked.host}:{port} cannot be reached: {problem or 'timed out'}")
        )

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        name = canonical(host)
        try:
            found: Sequence[str] = [str(ip_address(name))]
        except ValueError:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    found = await self._resolve(name, port)
            except (OSError, TimeoutError):
                raise RefusedError(502, Verdict("unknown-host", f"{name} does not resolve")) from None
        allowed, verdict = [], ALLOWED
        for text in found:
            one = self._judge_address(ip_address(text.partition("%")[0]))
            if one.is_allowed:
                allowed.append(text)
            else:
                verdict = one
        if (
            not verdict.is_allowed
        ):  # one bad address spoils the name: whoever answers for it cannot be trusted with the others
            raise RefusedError(403, verdict)
        return allowed

    async def _with_secrets(self, asked: _Asked, secrets: Sequence[SecretHeader]) -> bytes:
        """The request's head with what is added; the sandbox's own lines of those names are dropped."""
        if not secrets:
            return asked.head
        first, *lines = asked.head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        ours = {one.header.lower().encode() for one in secrets}
        kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in ours]
        for one in secrets:
            try:
                if self._secret_of is None:
                    raise LookupError(one.secret)
                value = await self._secret_of(one)
            except LookupError:
                # never silently without: the server would answer 401 and nobody would know why
                raise RefusedError(502, Verdict("no-secret", f'secret "{one.secret}" has no key "{one.key}"')) from None
            except SecretAwayError:
                raise RefusedError(
                    502, Verdict("secret-away", f'secret "{one.secret}" cannot be read now; try again')
                ) from None
            except ValueError:
                raise RefusedError(
                    502, Verdict("bad-secret", f'key "{one.key}" of secret "{one.secret}" is no text')
                ) from None
            text = one.format.replace("{}", value)
            if "\r" in text or "\n" in text:
                raise RefusedError(502, Verdict("bad-secret", f'secret "{one.secret}" is more than one line'))
            kept.append(f"{one.header}: {text}".encode())
        return b"\r\n".join([first, *kept]) + b"\r\n\r\n"

    async def _both_ways(
        self,
        outer_reader: asyncio.StreamReader,
        outer_writer: asyncio.StreamWriter,
        inner_reader: asyncio.StreamReader,
        inner_writer: asyncio.StreamWriter,
    ) -> None:
        def sent(count: int) -> None:
            self.traffic.sent += count

        def received(count: int) -> None:
            self.traffic.received += count

        out = asyncio.ensure_future(_copy(outer_reader, inner_writer, sent))
        back = asyncio.ensure_future(_copy(inner_reader, outer_writer, received))
        try:
            # the answer's end is the end; a client that has said all may still listen
            await back
        finally:
            for way in (out, back):
                way.cancel()
            await asyncio.gather(out, back, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    while True:
        async with asyncio.timeout(IDLE_S):
            piece = await reader.read(PIECE)
        if not piece:
            break
        writer.write(piece)
        count(len(piece))
        await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()


def _port(asked: _Asked, secrets: Sequence[SecretHeader]) -> int:
    """Where it goes: what carries a secret to where that secret is for."""
    return secrets[0].port if secrets else asked.port


def _phrase(sentence: str) -> bytes:
    """A refusal on the first line of its answer: of a tunnel that is not made, clients show nothing else."""
    return "".join(sign if " " <= sign <= "~" else "?" for sign in sentence).encode()


def _read_head(head: bytes) -> _Asked:
    """The first request of a connection; a plain one is told to close, so that every request is judged by itself."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(
        _CONTROLS.search(line) for line in (first, *lines)
    ):  # a server that takes LF for an end reads headers that nobody judged
        raise RefusedError(400, Verdict("bad-request", "a line of the request's head has a control character in it"))
    words = first.decode("latin-1").split(" ")
    if (
        len(words) != 3
        or words[2] not in ("HTTP/1.0", "HTTP/1.1")
        or not _METHOD.fullmatch(words[0])
        or not all(_NAMED.match(line) for line in lines)
    ):
        raise RefusedError(400, Verdict("bad-request", "this is no request to a proxy"))
    method, target, version = words
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        number = whole_number(port)
        if number is None or not host:
            raise RefusedError(400, Verdict("bad-request", f'CONNECT wants host:port, not "{target[:100]}"'))
        return _Asked(method, host, number, b"", is_tunnel=True)
    try:
        parts = urlsplit(target)
        port_number = parts.port or HTTP
    except ValueError:
        raise RefusedError(400, Verdict("bad-request", "the URL makes no sense")) from None
    if parts.scheme != "http" or not parts.hostname or "@" in parts.netloc:
        raise RefusedError(400, Verdict("bad-request", "a proxy takes http://host/path; https goes through CONNECT"))
    names = [line.partition(b":")[0] for line in lines]
    lengths = [name.lower() for name in names if name.lower() in (b"content-length", b"transfer-encoding")]
    if len(lengths) > 1:
        raise RefusedError(400, Verdict("bad-request", "the request can be read in two ways"))
    kept = [line for line, name in zip(lines, names, strict=True) if name.lower() not in DROPPED | {b"host"}]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host_line = parts.netloc.encode("latin-1")
    own = [f"{method} {path} {version}".encode("latin-1"), b"Host: " + host_line, *kept, b"Connection: close"]
    return _Asked(method, parts.hostname, port_number, b"\r\n".join(own) + b"\r\n\r\n", is_tunnel=False)
