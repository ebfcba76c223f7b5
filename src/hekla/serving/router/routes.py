"""Which ModelRoute, which of its rules and which of the rule's targets a request goes to.

The oldest route for a name wins; of its rules the first that matches; of the rule's targets one by weight. A name is looked for
among models first, then among adapters. Routes are compiled when they change, so that a request costs a few look-ups;
`world.py` keeps the table, `director.py` goes on from the target.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hekla.api.kthena import ModelRoute
from hekla.api.kthena.route import Rule, StringMatch
from hekla.lib.expressions import ExpressionError, expression

Text = Callable[[str], bool]
"""Whether some text matches."""
IsAttached = Callable[["Route"], bool]
"""Whether a route belongs to the listener that a request came in by."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a rule sends requests."""

    key: str
    """`namespace/name` of the ModelServer or ExternalModelProvider."""
    is_provider: bool = False


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule, ready to be asked."""

    targets: tuple[Target, ...]
    ceilings: tuple[int, ...]
    """Running sums of the targets' weights; the last is the sum. Empty: this rule sends nothing anywhere."""
    model: str | None = None
    headers: tuple[tuple[str, Text], ...] = ()
    uri: Text | None = None

    @property
    def is_open(self) -> bool:
        """Whether every request matches."""
        return self.model is None and not self.headers and self.uri is None

    def matches(self, model: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether all that it asks for holds; a header that is not there is empty."""
        return (
            (self.model is None or self.model == model)
            and (self.uri is None or self.uri(path))
            and all(asked(headers.get(name, "")) for name, asked in self.headers)
        )

    def pick(self, dice: float) -> Target:
        """One target by weight; `dice` is uniform in [0, 1)."""
        if len(self.targets) == 1:
            return self.targets[0]
        mark = dice * self.ceilings[-1]
        return next(one for one, ceiling in zip(self.targets, self.ceilings, strict=True) if mark < ceiling)


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """A ModelRoute, compiled; ordered oldest first."""

    created: str
    key: str
    """`namespace/name`."""
    source: ModelRoute = field(compare=False)
    rules: tuple[CompiledRule, ...] = field(compare=False)
    adapters: frozenset[str] = field(compare=False, default=frozenset())

    @property
    def namespace(self) -> str:
        """Where its targets are."""
        return self.source.metadata.namespace


@dataclass(frozen=True, slots=True)
class Found:
    """Where a request goes."""

    route: Route
    rule: CompiledRule
    is_adapter: bool
    """Whether the name asked for is an adapter of the route, so that engines get it as it is."""
    is_settled: bool = False
    """Whether every request for this name goes by this rule."""


class RouteTable:
    """All routes, by the names that clients ask for."""

    def __init__(self) -> None:
        self.by_key: dict[str, Route] = {}
        self._by_model: dict[str, list[Route]] = {}
        self._by_adapter: dict[str, list[Route]] = {}

    def put(self, route: ModelRoute) -> Route:
        """A new route, or a changed one."""
        self.drop(f"{route.metadata.namespace}/{route.metadata.name}")
        compiled = compile_route(route)
        self.by_key[compiled.key] = compiled
        for index, name in _names(compiled):
            insort(self._of(index).setdefault(name, []), compiled)
        return compiled

    def drop(self, key: str) -> None:
        """A route is gone."""
        route = self.by_key.pop(key, None)
        if route is None:
            return
        for index, name in _names(route):
            listed = self._of(index)
            listed[name] = [one for one in listed[name] if one.key != key]
            if not listed[name]:
                del listed[name]

    def candidates(self, model: str) -> tuple[Iterable[Route], bool]:
        """Routes for a name, oldest first, and whether it is an adapter's."""
        by_model = self._by_model.get(model)
        return (by_model, False) if by_model is not None else (self._by_adapter.get(model, ()), True)

    def find(self, model: str, path: str, headers: Mapping[str, str], is_attached: IsAttached) -> Found | None:
        """The rule that a request goes by; None: no route takes it."""
        routes, is_adapter = self.candidates(model)
        is_settled = True
        for route in routes:
            if not is_attached(route):
                continue
            for rule in route.rules:
                if rule.ceilings and rule.is_open:
                    return Found(route, rule, is_adapter, is_settled)
                is_settled = False
                if rule.ceilings and rule.matches(model, path, headers):
                    return Found(route, rule, is_adapter)
        return None

    def names(self) -> list[str]:
        """Every name that may be asked for."""
        return sorted(self._by_model.keys() | self._by_adapter.keys())

    def _of(self, index: str) -> dict[str, list[Route]]:
        return self._by_model if index == "model" else self._by_adapter


def _names(route: Route) -> Iterable[tuple[str, str]]:
    if route.source.spec.model_name:
        yield "model", route.source.spec.model_name
    yield from (("adapter", name) for name in sorted(route.adapters))


def compile_route(route: ModelRoute) -> Route:
    """Read a route once."""
    meta = route.metadata
    return Route(
        created=meta.creation_timestamp or "",
        key=f"{meta.namespace}/{meta.name}",
        source=route,
        rules=tuple(_compiled(rule, meta.namespace) for rule in route.spec.rules),
        adapters=frozenset(name for name in route.spec.lora_adapters if name),
    )


def _compiled(rule: Rule, namespace: str) -> CompiledRule:
    targets, ceilings, total = [], [], 0
    for one in rule.target_models:
        weight = 100 if one.weight is None else one.weight
        name = one.external_model_provider_name or one.model_server_name
        if weight and bool(one.external_model_provider_name) != bool(one.model_server_name):
            total += weight
            targets.append(Target(f"{namespace}/{name}", bool(one.external_model_provider_name)))
            ceilings.append(total)
    asked = rule.model_match
    return CompiledRule(
        targets=tuple(targets),
        ceilings=tuple(ceilings),
        model=asked.body.model if asked and asked.body else None,
        headers=tuple((name.lower(), text_match(said)) for name, said in asked.headers.items()) if asked else (),
        uri=text_match(asked.uri) if asked and asked.uri else None,
    )


def text_match(said: StringMatch) -> Text:
    """A question asked of text; an expression that cannot be read matches nothing, one that says nothing matches all."""
    if said.exact is not None:
        return said.exact.__eq__
    if said.prefix is not None:
        prefix = said.prefix
        return lambda text: text.startswith(prefix)
    if said.regex is None:
        return lambda _: True
    try:
        search = expression(said.regex).search
    except ExpressionError:
        return lambda _: False
    return lambda text: search(text) is not None
