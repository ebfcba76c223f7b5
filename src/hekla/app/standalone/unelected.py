"""Looks whether somebody leads beside a process that was told to wait for nobody (`--no-leader-elect`), and says so.

Two that act at once undo nothing of one another, but decide twice: the API server refuses half of what they write. A lease is held by
somebody who lives if it changes; that the clocks of two machines agree is not asked.
"""

import asyncio

import structlog

from hekla.kube.api_client import ApiClient
from hekla.kube.errors import KubeError

log = structlog.get_logger(__name__)

FIRST_LOOKS_S, LOOK_S = 3.0, 30.0
"""Between the first two looks, longer than who leads takes to renew; and between those that follow."""

HINT = "end one of them, or start this one without --no-leader-elect: then it waits until the other is gone"


async def tell_who_leads(client: ApiClient, namespace: str, lease: str, component: str) -> None:
    """Say once of each holder that it works, too; until cancelled."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}"
    before, told = await _record(client, path), ""
    await asyncio.sleep(FIRST_LOOKS_S)
    while True:
        holder, renewed = now = await _record(client, path)
        if holder and holder != told and renewed != before[1] and before[1]:
            told = holder
            log.warning("another acts beside us", component=component, lease=lease, held_by=holder, hint=HINT)
        before = now
        await asyncio.sleep(LOOK_S)


async def _record(client: ApiClient, path: str) -> tuple[str, str]:
    """Who holds the lease and when it was written last; empty where nobody does, or where it cannot be read."""
    try:
        spec = (await client.request("GET", path)).get("spec") or {}
    except KubeError:
        return "", ""
    return str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
