"""Two schedulers and the names of pods that each places: whether they share some, or one keeps the other from its own.

The lease of a scheduler says in an annotation which names its holder places pods of. Leases of other names exclude nobody: a scheduler of
`volcano` and `team-a`, which leads by `volcano`, and one of `team-a`, which leads by that, both place the pods of `team-a`. They undo nothing of
one another, but decide twice: the API server refuses half of what they bind. And who waits for a lease waits with all its names.
"""

import asyncio
from collections.abc import Iterable

import structlog

from hekla.api.meta import Document
from hekla.app.standalone.unelected import FIRST_LOOKS_S, LOOK_S
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import KubeError
from hekla.workloads.ours import DEFAULT_SCHEDULER

log = structlog.get_logger(__name__)

PLACES = "hekla.dev/places-pods-of"
"""`IDENTITY NAME,NAME`. An earlier holder's may be left over, so it says whose it is."""

ONE_OF_TWO = "end one of them, or give them --scheduler-name of which neither has one of the other"
TOGETHER = "give both the same --scheduler-name, or this one a single one, whose lease is its own"


def annotations_of(identity: str, names: Iterable[str]) -> dict[str, str]:
    """What the lease says of a scheduler that holds it."""
    return {PLACES: f"{identity} {','.join(names)}"}


def names_placed(lease: Document) -> set[str]:
    """The names that the holder of a lease places pods of; of one that does not say, as Volcano's scheduler, the lease's own."""
    metadata = lease.get("metadata") or {}
    holder = (lease.get("spec") or {}).get("holderIdentity")
    whose, _, names = ((metadata.get("annotations") or {}).get(PLACES) or "").partition(" ")
    return set(names.split(",")) if whose and whose == holder else {str(metadata.get("name"))}


def left_alone(lease: Document, names: Iterable[str]) -> dict[str, str]:
    """What is to be said of a holder behind whom a scheduler of these names waits, if it does not place them all."""
    missing = sorted(set(names) - names_placed(lease))
    return {"so": f"nobody places pods of {', '.join(missing)} meanwhile", "hint": TOGETHER} if missing else {}


async def tell_overlaps(client: ApiClient, namespace: str, lease: str, names: Iterable[str]) -> None:
    """Say once of each holder of another lease that it places pods of a name of ours, too; until cancelled."""
    ours = set(names)
    others = sorted((ours | {DEFAULT_SCHEDULER}) - {lease})
    before: dict[str, Document] = {}
    told: set[tuple[str, str]] = set()
    pause_s = FIRST_LOOKS_S
    while others:
        now = {name: await _lease(client, namespace, name) for name in others}
        for name, found in now.items():
            holder, shared = _holder(found), sorted(ours & names_placed(found))
            if shared and holder and _is_alive(before.get(name, {}), found) and (name, holder) not in told:
                told.add((name, holder))
                both = ", ".join(shared)
                log.warning(
                    "another scheduler places the same pods", scheduler_name=both, lease=name, held_by=holder, hint=ONE_OF_TWO
                )  # fmt: skip
        before = now
        await asyncio.sleep(pause_s)
        pause_s = LOOK_S


def _is_alive(before: Document, now: Document) -> bool:
    renewed = [(one.get("spec") or {}).get("renewTime") for one in (before, now)]
    return bool(renewed[0]) and renewed[0] != renewed[1]


def _holder(lease: Document) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


async def _lease(client: ApiClient, namespace: str, name: str) -> Document:
    """A lease; empty where there is none, or where it may not be read: then its holder has an account of its own."""
    try:
        return await client.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
    except KubeError:
        return {}
