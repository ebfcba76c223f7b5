"""What a node has to know of where it is: whom API servers say to believe, and which of the machine's addresses faces them."""

import asyncio
import socket
from urllib.parse import urlsplit

from hekla.app.front_proxy import CONFIG_MAP, NAMESPACE
from hekla.kube.client import Client
from hekla.kube.errors import NotFoundError


async def client_authorities(client: Client) -> str:
    """PEM of who signs the certificates that API servers show, as every API server says it; empty: it says nothing of it.
    Raises KubeError.
    """
    try:
        found = await client.request("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}")
    except NotFoundError:
        return ""
    return str((found.get("data") or {}).get("client-ca-file") or "")


async def address_towards(server: str) -> str:
    """The address of ours that faces an API server; nothing is sent. OSError: its name is not known now, or no way leads there."""
    host, port = host_and_port_of(server)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, _, _, where = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def host_and_port_of(server: str) -> tuple[str, int]:
    """Those of a URL."""
    parts = urlsplit(server)
    return parts.hostname or "", parts.port or 443
