"""Which kinds a server has; `metadata_kinds.py` makes classes to watch them with.

Garbage collection and namespace deletion work on whatever is served, custom resources included.
"""

from dataclasses import dataclass

import structlog

from hekla.api.meta import Document, Kind, Scope
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError

log = structlog.get_logger()


@dataclass(frozen=True)
class ServedKind:
    """A kind as discovery tells of it."""

    kind: Kind
    verbs: frozenset[str]

    def can(self, *verbs: str) -> bool:
        """Whether all these verbs are offered."""
        return self.verbs.issuperset(verbs)


async def discover(client: ApiClient) -> list[ServedKind]:
    """Every kind once, in its preferred version; groups that do not answer are left out and logged."""
    found: dict[str, ServedKind] = {}
    for version in await _group_versions(client):
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            listed = await client.request("GET", path)
        except ApiError as error:
            log.warning("group not discovered", group=version, why=str(error))
            continue
        for entry in listed.get("resources") or ():
            served = _served(version, entry)
            if served is not None:
                found.setdefault(served.kind.resource, served)
    return list(found.values())


async def _group_versions(client: ApiClient) -> list[str]:
    """`v1`, then each group's preferred version before its others."""
    versions = list((await client.request("GET", "/api")).get("versions") or ["v1"])
    for group in (await client.request("GET", "/apis")).get("groups") or ():
        preferred = (group.get("preferredVersion") or {}).get("groupVersion", "")
        others = [one["groupVersion"] for one in group.get("versions") or () if one["groupVersion"] != preferred]
        versions += [preferred, *others] if preferred else others
    return versions


def _served(group_version: str, entry: Document) -> ServedKind | None:
    plural = entry["name"]
    if "/" in plural:
        return None
    group, _, version = group_version.rpartition("/")
    kind = Kind(
        group=entry.get("group") or group,
        version=entry.get("version") or version,
        kind=entry["kind"],
        plural=plural,
        singular=entry.get("singularName") or entry["kind"].lower(),
        scope=Scope.NAMESPACED if entry.get("namespaced") else Scope.CLUSTER,
    )
    return ServedKind(kind, frozenset(entry.get("verbs") or ()))
