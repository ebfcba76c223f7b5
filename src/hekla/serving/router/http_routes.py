"""HTTPRoutes as a table: hosts, then paths (exact, longest prefix, expression), then headers and query parameters; each leads to InferencePools. Pure.

`gateway.py` asks it; a route whose rule cannot be carried out answers 500, as the Gateway API has it, rather than pass a filter
over in silence.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from hekla.api.core import Namespace
from hekla.api.foreign import HttpRoute, ReferenceGrant
from hekla.api.foreign.gateway import (
    BackendRef,
    HttpRouteRule,
    NamedMatch,
    PathMatch,
    RouteFilter,
    RouteMatch,
    UrlRewrite,
)
from hekla.api.foreign.references import GROUP
from hekla.lib.expressions import ExpressionError, expression
from hekla.serving.router.attachment import (
    Door,
    allows_kind,
    allows_namespace,
    common_hosts,
    host_fits,
    host_rank,
    names_door,
)  # fmt: skip
from hekla.serving.router.grants import Reference, may_refer

POOL_GROUP: Final = "inference.networking.k8s.io"
_PATH_RANK: Final = {"RegularExpression": 0, "PathPrefix": 1, "Exact": 2}
_ANY_MATCH: Final = RouteMatch()


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """An InferencePool that a rule sends requests to."""

    key: str
    """`namespace/name`."""
    ceiling: int
    """Running sum of the weights."""
    rewrites: tuple[UrlRewrite, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One match of one rule; ordered so that the first that fits is the one that counts."""

    order: tuple[object, ...]
    host: str = field(compare=False)
    match: RouteMatch = field(compare=False)
    route_key: str = field(compare=False)
    targets: tuple[PoolTarget, ...] = field(compare=False)
    complaint: str = field(compare=False, default="")
    """Why the rule cannot be carried out; empty: it can."""

    def fits(self, host: str, path: str, headers: Mapping[str, str], query: str = "") -> bool:
        """Whether a request goes by it; of a parameter that is there twice, the first counts."""
        match = self.match
        return (
            host_fits(self.host, host)
            and match.method in (None, "POST")
            and path_fits(match.path, path)
            and all(_value_fits(one, headers.get(one.name.lower())) for one in match.headers)
            and (not match.query_params or _query_fits(match.query_params, query))
        )

    def pick(self, dice: float) -> PoolTarget:
        """One pool by weight; `dice` is uniform in [0, 1)."""
        mark = dice * self.targets[-1].ceiling
        return next(one for one in self.targets if mark < one.ceiling)


def entries(
    routes: Iterable[HttpRoute],
    door: Door,
    namespaces: Mapping[str, Namespace],
    grants: Collection[ReferenceGrant] = (),
) -> list[Entry]:
    """What a listener's routes ask for, the most specific first."""
    found: list[Entry] = []
    for route in routes:
        if is_attached(route, door, namespaces):
            for number, rule in enumerate(route.spec.rules):
                found += _of_rule(route, number, rule, common_hosts(door.hostname, route.spec.hostnames), grants)
    return sorted(found)


def is_attached(route: HttpRoute, door: Door, namespaces: Mapping[str, Namespace]) -> bool:
    """Whether a listener takes a route."""
    namespace = route.metadata.namespace
    return (
        any(names_door(reference, namespace, door) for reference in route.spec.parent_refs)
        and allows_kind(door, "HTTPRoute")
        and allows_namespace(door, namespace, namespaces)
        and bool(common_hosts(door.hostname, route.spec.hostnames))
    )


def _of_rule(
    route: HttpRoute, number: int, rule: HttpRouteRule, hosts: list[str], grants: Collection[ReferenceGrant]
) -> list[Entry]:
    meta = route.metadata
    targets, complaint = _targets(route, rule, grants)
    return [
        Entry(
            order=(*_order(host, match), meta.creation_timestamp or "", meta.namespace, meta.name, number, place),
            host=host,
            match=match,
            route_key=f"{meta.namespace}/{meta.name}",
            targets=targets,
            complaint=complaint,
        )
        for host in hosts
        for place, match in enumerate(rule.matches or [_ANY_MATCH])
    ]


def _order(host: str, match: RouteMatch) -> tuple[int, ...]:
    """Smaller comes first: the specific host, the exact path, the long path, a method, many headers, many parameters."""
    kind, length = host_rank(host)
    path = _PATH_RANK.get(match.path.type, 0)
    return (
        -kind,
        -length,
        -path,
        -len(match.path.value),
        -(match.method is not None),
        -len(match.headers),
        -len(match.query_params),
    )


def _targets(
    route: HttpRoute, rule: HttpRouteRule, grants: Collection[ReferenceGrant]
) -> tuple[tuple[PoolTarget, ...], str]:
    complaint = next((said for one in rule.filters if (said := filter_complaint(one))), "")
    total, found = 0, list[PoolTarget]()
    for reference in rule.backend_refs:
        complaint = complaint or next((said for one in reference.filters if (said := filter_complaint(one))), "")
        complaint = complaint or reference_complaint(reference, route.metadata.namespace, grants)
        weight = 1 if reference.weight is None else reference.weight
        if weight and not complaint:
            total += weight
            rewrites = (one.url_rewrite for one in (*rule.filters, *reference.filters) if one.url_rewrite)
            found.append(PoolTarget(pool_of(reference, route.metadata.namespace).key, total, tuple(rewrites)))
    if not complaint and not found:
        complaint = "no backend of the rule has a weight"
    return tuple(found), complaint


def pool_of(reference: BackendRef, namespace: str) -> Reference:
    """What a rule of a route in this namespace points at."""
    return Reference(reference.group, reference.kind, reference.namespace or namespace, reference.name)


def reference_complaint(reference: BackendRef, namespace: str, grants: Iterable[ReferenceGrant]) -> str:
    """Why a backend cannot be gone to; empty: it can."""
    if (reference.group, reference.kind) != (POOL_GROUP, "InferencePool"):
        return f'backend "{reference.name}" is a {reference.kind}, only InferencePools of {POOL_GROUP} are served'
    to = pool_of(reference, namespace)
    if not may_refer(Reference(GROUP, "HTTPRoute", namespace), to, grants):
        return (
            f'InferencePool "{to.key}" may not be referred to from namespace "{namespace}"; '
            f'make a ReferenceGrant in namespace "{to.namespace}"'
        )
    return ""


def filter_complaint(one: RouteFilter) -> str:
    """Why a filter cannot be carried out; empty: it can."""
    return "" if one.type == "URLRewrite" else f"filters of type {one.type} are not served, only URLRewrite is"


def path_fits(match: PathMatch, path: str) -> bool:
    """Exact, by whole segments of a prefix, or by an expression for the whole path."""
    if match.type == "Exact":
        return path == match.value
    if match.type == "PathPrefix":
        prefix = match.value.rstrip("/")
        return path == prefix or path.startswith(f"{prefix}/")
    try:
        return expression(match.value).fullmatch(path) is not None
    except ExpressionError:
        return False


def _query_fits(matches: Iterable[NamedMatch], query: str) -> bool:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found.setdefault(name, value)
    return all(_value_fits(one, found.get(one.name)) for one in matches)


def _value_fits(match: NamedMatch, value: str | None) -> bool:
    if value is None:
        return False
    if match.type == "Exact":
        return value == match.value
    try:
        return expression(match.value).fullmatch(value) is not None
    except ExpressionError:
        return False


def rewritten(rewrites: Iterable[UrlRewrite], match: PathMatch, path: str) -> tuple[str, str]:
    """(path, host) as the backend sees them; an empty host stays as it came."""
    host = ""
    for one in rewrites:
        host = one.hostname or host
        change = one.path
        if change is None:
            continue
        if change.type == "ReplaceFullPath":
            path = change.replace_full_path or "/"
        elif match.type == "PathPrefix" and path_fits(match, path):
            rest = path[len(match.value.rstrip("/")) :].lstrip("/")
            new = (change.replace_prefix_match or "").rstrip("/")
            path = f"{new}/{rest}" if rest else new or "/"
    return path, host
