"""From a URL path to what it names: a collection, an object, a subresource, or something that is no resource.

Only the shape of the path is read here; whether such a resource is served is `registry.py`'s to say.
"""

from typing import NamedTuple

NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


class Target(NamedTuple):
    """A path under /api or /apis that names a resource."""

    group: str
    version: str
    resource: str
    """The plural, without its group."""

    namespace: str
    name: str
    subresource: str
    tail: str
    """What follows the subresource, for proxies: `healthz/ready` of `.../proxy/healthz/ready`."""


def target_of(path: str) -> Target | None:
    """What a decoded path names; None if it is no resource path (discovery, health, OpenAPI)."""
    parts = path.split("/")
    if len(parts) > 3 and parts[1] == "api":
        return _resource("", parts[2], parts[3:])
    if len(parts) > 4 and parts[1] == "apis":
        return _resource(parts[2], parts[3], parts[4:])
    return None


def _resource(group: str, version: str, rest: list[str]) -> Target | None:
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in NAMESPACE_SUBRESOURCES):
        namespace, rest = rest[1], rest[2:]
        if not namespace:
            return None
    rest = [*rest, "", "", ""][: max(4, len(rest))]
    if not rest[0]:
        return None
    return Target(group, version, rest[0], namespace, rest[1], rest[2], "/".join(rest[3:]))


VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def verb_of(method: str, target: Target, *, is_watch: bool) -> str:
    """The verb that authorization sees."""
    if method in {"GET", "HEAD"}:
        if target.name:
            return "get"
        return "watch" if is_watch else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return VERBS.get(method, method.lower())
