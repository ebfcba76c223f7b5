"""Asks a pod's server by HTTP, as a kubelet does: a redirect is followed to the same host, ten questions at the most.

`health.py` says what the answers mean to probes and hooks. Without a client library: these requests are small, many, and must not
share connections.
"""

import asyncio
import contextlib
import re
import ssl
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from hekla.api.containers import HTTPHeader
from hekla.lib.digits import whole_number
from hekla.node.reaching import Place

MAX_BODY = 10 * 1024
MAX_HEAD = 2 * MAX_BODY
MAX_REQUESTS = 10
"""Go's bound, with its words."""
_MAX_INTERIM = 5
_WITHOUT_BODY = (101, 204, 304)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_NOT_ESCAPED = "/:?#[]@!$&'()*+,;=~%"
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_IN_A_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: the last answer, and where it came from."""

    status: int
    body: str
    location: str = ""
    """Where it leads, if it leads anywhere."""


class HttpGetError(Exception):
    """No answer; the sentence is the one that Go's client says."""

    def __init__(self, url: str, why: str, *, speaks_plainly: bool = False) -> None:
        super().__init__(f'Get "{url}": {why}')
        self.speaks_plainly = speaks_plainly
        """TLS was asked for, and the server does not speak it."""


async def http_get(url: str, headers: list[HTTPHeader], place: Place, *, agent: str) -> Reply:
    """The answer to a GET, redirects to the same host followed. Raises HttpGetError."""
    first_host, custom_host = urlsplit(url).hostname, ""
    named = _headers(headers, agent)
    for header in headers:
        if _NOT_IN_A_VALUE.search(header.value):
            raise HttpGetError(url, f'net/http: invalid header field value for "{header.name}"')
        if header.name.lower() == "host":
            custom_host = header.value
    for asked in range(1, MAX_REQUESTS + 1):
        reply = await _get(url, custom_host, named, place)
        if reply.status not in _REDIRECTS or not reply.location:
            return reply
        try:
            leads_to = urljoin(url, reply.location)
            parts = urlsplit(leads_to)
            _ = parts.port
        except ValueError as problem:
            raise HttpGetError(url, f'failed to parse Location header "{reply.location}": {problem}') from None
        if parts.hostname != first_host:
            return reply
        if asked == MAX_REQUESTS:
            raise HttpGetError(reply.location, f"stopped after {MAX_REQUESTS} redirects")
        if parts.scheme not in _DEFAULT_PORTS:
            raise HttpGetError(leads_to, f'unsupported protocol scheme "{parts.scheme}"')
        if urlsplit(reply.location).scheme:
            custom_host = ""  # a name that was given for another server is not that of this one
        url = leads_to
    raise AssertionError("the last round returns or raises")


def url_of(scheme: str, host: str, port: int, path: str) -> str:
    """As Go writes it: what no URL may contain is escaped, and the path begins with a slash in any case."""
    escaped = quote(_BAD_PERCENT.sub("%25", path.removeprefix("/")), safe=_NOT_ESCAPED, errors="replace")
    return f"{'https' if scheme.upper() == 'HTTPS' else 'http'}://{host}:{port}/{escaped}"


def _headers(headers: list[HTTPHeader], agent: str) -> list[tuple[str, str]]:
    named = [(each.name, each.value) for each in headers if each.name.lower() != "host"]
    given = {name.lower() for name, _ in named}
    usual = (("User-Agent", agent), ("Accept", "*/*"))
    every = [*(each for each in usual if each[0].lower() not in given), *named]
    return [(name, value) for name, value in every if value or name.lower() != "accept"]


async def _get(url: str, custom_host: str, headers: list[tuple[str, str]], place: Place) -> Reply:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    try:
        tls = _lenient() if parts.scheme == "https" else None
        reader, writer = await place.open(host, port, tls=tls, limit=MAX_HEAD)
        try:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            writer.write(
                f"GET {target or '/'} HTTP/1.1\r\nHost: {custom_host or parts.netloc}\r\n{lines}Connection: close\r\n\r\n".encode()
            )
            return await _reply(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except ConnectionRefusedError:
        raise HttpGetError(url, f"dial tcp {host}:{port}: connect: connection refused") from None
    except ssl.SSLError as problem:
        if problem.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            raise HttpGetError(url, "http: server gave HTTP response to HTTPS client", speaks_plainly=True) from None
        raise HttpGetError(url, str(problem.strerror or problem)) from None
    except (OSError, ValueError, EOFError) as problem:
        raise HttpGetError(url, str(getattr(problem, "strerror", "") or problem)) from None


async def _reply(reader: asyncio.StreamReader) -> Reply:
    """ValueError: this is no HTTP."""
    for _ in range(_MAX_INTERIM):
        words = (await reader.readline()).split(None, 2)
        status = whole_number(words[1].decode("latin-1")) if len(words) > 1 else None
        if status is None or not words[0].startswith(b"HTTP/"):
            raise ValueError("malformed HTTP response" if words else "EOF")
        head = await _head(reader)
        if status >= 200 or status == 101:
            length = whole_number(head.get("content-length", ""))
            body = b"" if status in _WITHOUT_BODY else await _body(reader, length)
            return Reply(status, body.decode("utf-8", "replace"), head.get("location", ""))
    raise ValueError("net/http: too many 1xx informational responses")


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    head: dict[str, str] = {}
    size = 0
    while line := (await reader.readline()).strip():
        size += len(line)
        if size > MAX_HEAD:
            raise ValueError("net/http: server response headers exceeded the bound")
        name, _, value = line.decode("utf-8", "replace").partition(":")
        head.setdefault(name.strip().lower(), value.strip())
    return head


async def _body(reader: asyncio.StreamReader, length: int | None) -> bytes:
    """Its beginning: nobody reads on, so nobody waits for the rest of one whose length is not told."""
    if length is None:
        return await reader.read(MAX_BODY)
    try:
        return await reader.readexactly(min(length, MAX_BODY))
    except asyncio.IncompleteReadError:
        raise ValueError("unexpected EOF") from None


def _lenient() -> ssl.SSLContext:
    """Probes do not check certificates, as in Kubernetes."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
