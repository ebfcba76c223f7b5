"""Passes an HTTP request on to an address that only this machine can reach, and the answer back as it comes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.messages import Request, Response

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "host", "content-length", "authorization", "accept-encoding", "content-type"}
)  # fmt: skip
"""Headers that concern one connection, or that must not leave (the caller's token)."""


async def proxy_to(client: HttpClient, host: str, port: int, path: str, request: Request) -> Response:
    """Ask `host:port` what `request` asks at `path`; 503 if it cannot be reached."""
    query = f"?{request.raw_query}" if request.raw_query else ""
    url = f"http://{host}:{port}/{path.lstrip('/')}{query}"
    headers = tuple((name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP)
    if "content-type" in request.headers:
        headers = (*headers, ("content-type", request.headers["content-type"]))
    stack = AsyncExitStack()
    try:
        answer = await stack.enter_async_context(client.stream(request.method, url, headers=headers, body=request.body))
    except WireError as problem:
        await stack.aclose()
        return Response(503, f"error trying to reach service: {problem}".encode(), "text/plain")

    async def body() -> AsyncIterator[bytes]:
        async with stack:
            async for piece in answer:
                yield piece

    kept = tuple((name, value) for name, value in answer.headers if name.lower() not in HOP_BY_HOP)
    return Response(answer.status, body(), answer.content_type, kept)
