"""The desk: for each request, which route takes it, and the plan over the engines, pairs or provider behind the route.

What a name leads to is looked up once and remembered until routes change, so that a request for a model with one open rule
costs one look-up. `world.py` keeps the table, `local_plan.py`, `pair_plan.py` and `providers.py` are the ways on from here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hekla.api.kthena.provider import ProviderType
from hekla.serving.router.backends import Backend
from hekla.serving.router.bodies import with_model
from hekla.serving.router.hints import Hints
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.pair_plan import Pairing, PairPlan
from hekla.serving.router.plan import LEADS_NOWHERE, Destination, Plan, Refusal, Waiting
from hekla.serving.router.providers import provider_plan
from hekla.serving.router.question import Question
from hekla.serving.router.routes import Found, Route, Target
from hekla.serving.router.stickiness import session_of
from hekla.serving.router.world import World

MOST_NAMES = 4096
"""Names that are remembered; clients choose the names that they ask for."""
SHOWN_NAME = 200
"""Characters of a name that a client made up which it is told again."""


@dataclass(slots=True)
class Way:
    """What a name leads to by one rule: its destinations by the key of their target, made when first gone to."""

    found: Found
    model: str
    destinations: dict[str, Destination] = field(default_factory=dict)
    at_providers: dict[str, Destination] = field(default_factory=dict)


class Director:
    """Decides for every request that comes in by the default listener; a `plan.Desk`."""

    def __init__(self, world: World, dice: Callable[[], float]) -> None:
        self.world = world
        self._dice = dice
        self._ways: dict[str, Way] = {}
        self._pairings: dict[str, Pairing] = {}
        self._version = -1
        self._hints = Hints()

    def plan(self, question: Question, now: float) -> Plan | Refusal | Waiting:
        """The way of one request, or why there is none."""
        way = self.way(question)
        return self.no_route(question, self.models(), now) if way is None else self.go(way, question)

    def no_route(self, question: Question, names: Sequence[str], now: float) -> Refusal:
        """Nothing takes the request, of what has these names; the words that Kthena says come first."""
        if question.model in names:
            said = f'route not found: no rule of a route for "{question.model[:SHOWN_NAME]}" takes this request at {question.path}'
            return Refusal(
                404,
                "route_not_found",
                f"{said}: they ask for other headers or paths, or it comes by a Gateway",
                param="model",
            )
        return unknown_model(question.model, f" at {question.path}{self._hints.about(question.model, names, now)}")

    def hold(self, destination: Destination) -> Waiting | Refusal | None:
        """Whether a request whose engines took no connection may wait for one to come back."""
        world = self.world
        tables = {"model_server": world.servers, "inference_pool": world.inference_pools}
        backend = tables.get(destination.backend_type, {}).get(destination.backend_name)
        return world.on_empty(backend) if backend is not None else None

    def models(self) -> Sequence[str]:
        """The names that clients may ask for."""
        return self.world.models()

    def way(self, question: Question) -> Way | None:
        """The rule that a request goes by."""
        world = self.world
        if self._version != world.version:
            self.forget()
        way = self._ways.get(question.model)
        if way is not None:
            return way
        found = world.routes.find(question.model, question.path, question.headers, self.is_attached)
        if found is None:
            return None
        way = Way(found, question.model)
        if found.is_settled and len(self._ways) < MOST_NAMES:
            self._ways[question.model] = way
        return way

    def is_attached(self, route: Route) -> bool:
        """Whether a route belongs here: the default listener takes those that name no Gateway."""
        return not route.source.spec.parent_refs

    def go(self, way: Way, question: Question) -> Plan | Refusal | Waiting:
        """The plan for what the rule's weights choose."""
        rule = way.found.rule
        target = rule.targets[0] if len(rule.targets) == 1 else rule.pick(self._dice())
        if target.is_provider:
            return self._to_provider(way, target, question)
        backend = self.world.servers.get(target.key)
        if backend is None:
            return Refusal(
                404, "pod_discovery", LEADS_NOWHERE, detail=f"can't find model server: {target.key}{_named_by(way)}"
            )
        if backend.is_empty and (held := self.world.on_empty(backend)) is not None:
            return held
        if (backend.traits.tokenizer or self.world.tokenizer) and not question.was_tokenized:
            reading = self.world.on_text(backend, question)
            if reading is not None:
                return reading
        destination = way.destinations.get(target.key)
        if destination is None:
            upstream = way.model if way.found.is_adapter else backend.traits.model or way.model
            destination = _destination(way, "model_server", target, upstream, backend.traits.engine)
            way.destinations[target.key] = destination
        return self.over(backend, question, destination, is_adapter=way.found.is_adapter)

    def over(self, backend: Backend, question: Question, destination: Destination, *, is_adapter: bool = False) -> Plan:
        """The plan of a request over a backend's engines: one engine, or a prefill and a decode engine."""
        traits = backend.traits
        body = None
        if destination.upstream_model != question.model:
            body = with_model(question.body, destination.upstream_model)
        if traits.pd is not None and not question.is_form:  # a decode engine answers a form by itself
            return PairPlan(self.pairing(backend), question, destination, body=body)
        return LocalPlan(
            backend.decode,
            question,
            destination,
            body=body,
            adapter=question.model if is_adapter else "",
            session=session_of(traits.sticky, question) if traits.sticky is not None else "",
            head_timeout_s=traits.head_timeout_s,
            most_attempts=traits.most_attempts,
            retry_s=traits.retry_s,
        )

    def forget(self) -> None:
        """Routes or backends changed: what was derived from them is derived anew."""
        self._ways.clear()
        self._pairings.clear()
        self._version = self.world.version

    def pairing(self, backend: Backend) -> Pairing:
        """What all requests to a backend of pairs share."""
        pairing = self._pairings.get(backend.traits.key)
        if pairing is None:
            pairing = self._pairings[backend.traits.key] = Pairing.of(backend)
        return pairing

    def _to_provider(self, way: Way, target: Target, question: Question) -> Plan | Refusal:
        provider = self.world.providers.get(target.key)
        if provider is None:
            said = f"can't find external model provider: {target.key}{_named_by(way)}"
            return Refusal(404, "provider_discovery", LEADS_NOWHERE, detail=said)
        destination = way.at_providers.get(target.key)
        if destination is None:
            upstream = provider.source.spec.model or way.model
            destination = way.at_providers[target.key] = _destination(
                way, "external_provider", target, upstream, provider.source.spec.provider_type or ProviderType.OPENAI
            )
        return provider_plan(provider, question, destination)


def unknown_model(name: str, where: str = "") -> Refusal:
    """Nothing has the name."""
    said = f'route not found: no route takes model "{name[:SHOWN_NAME]}"{where}; GET /v1/models lists those there are'
    return Refusal(404, "route_not_found", said, param="model")


def _named_by(way: Way) -> str:
    return f', which ModelRoute "{way.found.route.key}" names; create it or take it out of the route'


def _destination(way: Way, backend_type: str, target: Target, upstream_model: str, maker: str) -> Destination:
    return Destination(
        model=way.model,
        model_route=way.found.route.key,
        backend_type=backend_type,
        backend_name=target.key,
        upstream_model=upstream_model,
        maker=maker.lower(),
    )
