"""The desk of one port where the Gateway API is on: by host a listener, by listener its ModelRoutes, then its HTTPRoutes.

A ModelRoute goes before an HTTPRoute. The default port also takes ModelRoutes that name no Gateway. `attachment.py` says what
belongs to which listener, `http_routes.py` which pool a request goes to.
"""

from collections.abc import Callable, Sequence

from hekla.serving.router.attachment import Door, allows_namespace, host_fits, host_rank, names_door
from hekla.serving.router.director import Director, Way
from hekla.serving.router.http_routes import Entry, entries, rewritten
from hekla.serving.router.listeners import doors_by_port
from hekla.serving.router.plan import (
    LEADS_NOWHERE,
    NOBODY_READY,
    Attempt,
    Destination,
    Fault,
    Plan,
    Refusal,
    Usage,
    Waiting,
)
from hekla.serving.router.providers import with_query
from hekla.serving.router.question import Question
from hekla.serving.router.reading import is_for_operators
from hekla.serving.router.routes import Route
from hekla.serving.router.world import World

MOST_WAYS = 4096


def wanted_ports(world: World) -> dict[int, bool]:
    """The ports that Gateways of ours ask for, and whether with TLS."""
    return {port: doors[0].is_tls for port, doors in doors_by_port(world.our_gateways()).items()}


class GatewayDesk:
    """Decides for requests that come in by one port; a `plan.Desk`."""

    def __init__(
        self, world: World, dice: Callable[[], float], port: int, *, takes_unbound: bool = False, is_tls: bool = False
    ) -> None:
        self.world = world
        self._dice = dice
        self._port = port
        self._takes_unbound = takes_unbound
        self._is_tls = is_tls
        self._director = Director(world, dice)
        self._doors: list[Door] = []
        self._entries: dict[int, list[Entry]] = {}
        self._ways: dict[tuple[int, str], Way] = {}
        self._destinations: dict[tuple[str, str], Destination] = {}
        self._version = -1

    def plan(self, question: Question, now: float) -> Plan | Refusal | Waiting:
        """The way of one request, or why there is none."""
        if self._version != self.world.version:
            self._read_again()
        at = self._doors_for(question)
        for number in at:
            way = self._way(number, question)
            if way is not None and not is_for_operators(question.path):
                return self._director.go(way, question)
        for number in at:
            for entry in self._entries[number]:
                if entry.fits(_host_of(question), question.path, question.headers, question.query):
                    return self._to_pool(entry, question)
        if self._takes_unbound and not is_for_operators(question.path) and (way := self._director.way(question)):
            return self._director.go(way, question)
        return self._director.no_route(question, self.models(), now)

    def hold(self, destination: Destination) -> Waiting | Refusal | None:
        """Whether a request whose engines took no connection may wait for one to come back."""
        return self._director.hold(destination)

    def models(self) -> Sequence[str]:
        """The names that may be asked for here."""
        if self._version != self.world.version:
            self._read_again()
        found: set[str] = set(self._director.models()) if self._takes_unbound else set()
        for route in self.world.routes.by_key.values():
            if any(self._is_attached(route, door) for door in self._doors):
                found |= {route.source.spec.model_name, *route.adapters} - {""}
        return sorted(found)

    def _read_again(self) -> None:
        world = self.world
        self._version = world.version
        at_port = doors_by_port(world.our_gateways()).get(self._port, [])
        # what asks for HTTPS is never answered on a port that does not end it by the listener's certificate
        self._doors = [one for one in at_port if one.is_tls == self._is_tls]
        routes = world.http_routes.values()
        grants = world.grants.values()
        self._entries = {i: entries(routes, door, world.namespaces, grants) for i, door in enumerate(self._doors)}
        self._ways.clear()
        self._destinations.clear()
        self._director.forget()

    def _doors_for(self, question: Question) -> list[int]:
        """The listeners with the most specific hostname for this host."""
        host = _host_of(question)
        fitting = [i for i, door in enumerate(self._doors) if host_fits(door.hostname, host)]
        best = max((host_rank(self._doors[i].hostname) for i in fitting), default=None)
        return [i for i in fitting if host_rank(self._doors[i].hostname) == best]

    def _way(self, number: int, question: Question) -> Way | None:
        """The ModelRoute of a listener that takes the request; they are about /v1/ only."""
        if not question.path.startswith("/v1/"):
            return None
        way = self._ways.get((number, question.model))
        if way is not None:
            return way
        door = self._doors[number]
        found = self.world.routes.find(
            question.model, question.path, question.headers, lambda route: self._is_attached(route, door)
        )
        if found is None:
            return None
        way = Way(found, question.model)
        if found.is_settled and len(self._ways) < MOST_WAYS:
            self._ways[number, question.model] = way
        return way

    def _is_attached(self, route: Route, door: Door) -> bool:
        references = route.source.spec.parent_refs
        if not references:
            return self._takes_unbound or door.gateway.metadata.namespace == route.namespace
        return any(names_door(one, route.namespace, door) for one in references) and allows_namespace(
            door, route.namespace, self.world.namespaces
        )

    def _to_pool(self, entry: Entry, question: Question) -> Plan | Refusal | Waiting:
        if entry.complaint:
            said = f'HTTPRoute "{entry.route_key}": {entry.complaint}'
            return Refusal(500, "inference_pool_selection", LEADS_NOWHERE, detail=said)
        target = entry.pick(self._dice())
        backend = self.world.inference_pools.get(target.key)
        if backend is None:
            said = f"can't find inference pool: {target.key}"
            return Refusal(404, "inference_pool_discovery", LEADS_NOWHERE, detail=said)
        if not backend.traits.ports:
            said = f"inference pool {target.key} has no target ports"
            return Refusal(400, "port_discovery", LEADS_NOWHERE, detail=said)
        if not backend.decode.members:
            said = f"no available pods for inference pool: {target.key}"
            nobody = Refusal(503, "pod_discovery", NOBODY_READY, 5.0, detail=said)
            return self.world.on_empty(backend) or nobody
        path, host = rewritten(target.rewrites, entry.match.path, question.path)
        if is_for_operators(path):
            return Refusal(404, "not_found", f"{path} is no path that models are asked by")
        if self.world.tokenizer and not question.was_tokenized:
            reading = self.world.on_text(backend, question)
            if reading is not None:
                return reading
        plan = self._director.over(backend, question, self._destination(target.key, question.model))
        return plan if path == question.path and not host else RewrittenPlan(plan, with_query(path, question), host)

    def _destination(self, key: str, model: str) -> Destination:
        known = self._destinations.get((key, model))
        if known is None:
            if len(self._destinations) >= MOST_WAYS:
                self._destinations.clear()
            known = Destination(model=model, backend_type="inference_pool", backend_name=key, upstream_model=model)
            self._destinations[key, model] = known
        return known


class RewrittenPlan:
    """A plan whose attempts go to another path, or name another host."""

    __slots__ = ("_host", "_inner", "_path", "destination")

    def __init__(self, inner: Plan, path: str, host: str) -> None:
        self.destination = inner.destination
        self._inner, self._path, self._host = inner, path, host

    def next(self, now: float) -> Attempt | Refusal:
        """The inner plan's attempt, with the address changed."""
        attempt = self._inner.next(now)
        if isinstance(attempt, Attempt):
            attempt.path = self._path
            if self._host:
                attempt.headers = (*attempt.headers, (b"host", self._host.encode()))
        return attempt

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        """The inner plan's business."""
        self._inner.failed(attempt, fault, now)

    def first_byte(self, now: float) -> None:
        """The inner plan's business."""
        self._inner.first_byte(now)

    def ended(self, usage: Usage | None, now: float) -> None:
        """The inner plan's business."""
        self._inner.ended(usage, now)


def _host_of(question: Question) -> str:
    host = question.headers.get("host", "").lower()
    return host if host.startswith("[") else host.partition(":")[0]
