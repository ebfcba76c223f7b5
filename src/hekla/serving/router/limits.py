"""Budgets of tokens and requests: per route as its ModelRoute says, per tenant as the router's configuration says.

A guard (`plan.Guard`) that never waits. Input tokens are taken when a request comes, by estimate, and put right when the engine
has counted them; output tokens are taken when they are known and may leave a debt (`edge/buckets.py`), since what does not fit
would otherwise pass free. Several routers share a route's budget through `shared_limits.py`.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from hekla.api.kthena import ModelRoute
from hekla.edge.buckets import Bucket
from hekla.serving.router.plan import NOT_ASKED, Refusal, Usage
from hekla.serving.router.question import Question

PERIOD_S: Final = {"second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0, "month": 2_592_000.0}
MOST_TENANTS: Final = 10_000
"""Tenants whose use is remembered; beyond it the one that was idle longest is forgotten, and begins with a full budget."""

TOO_MUCH_INPUT: Final = "input token rate limit exceeded"
TOO_MUCH_OUTPUT: Final = "output token rate limit exceeded"
TOO_MANY_REQUESTS: Final = "request rate limit exceeded"
"""Kthena's words, with which each refusal begins."""
STATUS: Final = 429
_UNITS: Final = {seconds: unit for unit, seconds in PERIOD_S.items()}


Spent = tuple[int, int, int]
"""Input tokens, output tokens, requests; an estimate that is put right may be taken back."""
_ROUTE, _USER = "route", "user"
MOST_TOLD: Final = 256
"""Budgets in one message to the other processes; the others are told with the next."""


class Limit(Struct, frozen=True, kw_only=True):
    """How much may pass in a period; None: any."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    requests: int | None = None
    period_s: float = 1.0
    key: str = ""
    """Whose budget it is: a route's model, in Redis' key too."""
    redis: str = ""
    """Address of the Redis that keeps the budget for all routers; empty: this router's own."""


class TenantLimitError(Exception):
    """A tenants' list that cannot be read; the sentence names entry, field and value."""


def limits_of(routes: Iterable[ModelRoute]) -> dict[str, Limit]:
    """The limit of every name that is asked for; of two routes for one name the older counts, as in matching."""
    limits: dict[str, Limit] = {}
    taken: set[str] = set()
    for route in sorted(routes, key=_age):
        names = [one for one in (route.spec.model_name, *route.spec.lora_adapters) if one and one not in taken]
        taken.update(names)
        if route.spec.rate_limit is not None:
            limit = _limit_of(route)
            limits.update((name, limit) for name in names)
    return limits


def _age(route: ModelRoute) -> tuple[str, str, str]:
    meta = route.metadata
    return str(meta.creation_timestamp or ""), meta.namespace, meta.name


def _limit_of(route: ModelRoute) -> Limit:
    said = route.spec.rate_limit
    assert said is not None
    return Limit(
        input_tokens=said.input_tokens_per_unit,
        output_tokens=said.output_tokens_per_unit,
        period_s=PERIOD_S[said.unit or "second"],
        # Kthena gives all routes with LoRA names only the key "": they would share one budget
        key=route.spec.model_name or f"{route.metadata.namespace}/{route.metadata.name}",
        redis=said.shared.redis.address if said.shared is not None and said.shared.redis is not None else "",
    )


def read_tenants(entries: Sequence[Mapping[str, Any]]) -> dict[str, Limit]:
    """The limits of users by name, `*` for everybody else, from the configuration's `tenants`."""
    limits: dict[str, Limit] = {}
    for number, entry in enumerate(entries, 1):
        where = f"tenants entry {number}"
        user = entry.get("user")
        if not isinstance(user, str) or not user:
            raise TenantLimitError(f'{where}: "user" must be a name, or "*" for everybody else')
        if user in limits:
            raise TenantLimitError(f'{where}: user "{user}" has a limit already')
        if unknown := sorted(entry.keys() - {"user", "unit", *_FIELDS}):
            raise TenantLimitError(f'{where}: unknown field "{unknown[0]}"; known are user, unit, {", ".join(_FIELDS)}')
        unit = entry.get("unit", "second")
        if not isinstance(unit, str) or unit not in PERIOD_S:
            raise TenantLimitError(f'{where}: unit "{unit}" is none of {", ".join(PERIOD_S)}')
        if not entry.keys() & set(_FIELDS):
            raise TenantLimitError(f"{where}: limits nothing; give one of {', '.join(_FIELDS)}")
        inputs, outputs, requests = (_amount(where, name, entry.get(name)) for name in _FIELDS)
        limits[user] = Limit(
            input_tokens=inputs, output_tokens=outputs, requests=requests, period_s=PERIOD_S[unit], key=user
        )
    return limits


_FIELDS: Final = ("inputTokensPerUnit", "outputTokensPerUnit", "requestsPerUnit")


def _amount(where: str, name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TenantLimitError(f'{where}: {name} "{value}" must be a whole number of at least 1')
    return value


class Budget:
    """The buckets of one limit, and what was taken from them here since the other processes of this router were told."""

    __slots__ = (
        "input", "key", "lent", "limit", "output", "placed_at", "requests", "untold_input", "untold_output", "untold_requests",
    )  # fmt: skip

    def __init__(self, limit: Limit, now: float, key: str = "") -> None:
        """`key` is what the processes of one router call it."""
        self.limit = limit
        self.key = key
        self.placed_at = now
        """The use by which it has its place among those that may be forgotten."""
        self.lent = 0
        """To how many of the fast lane's ways: they have its address, so it is not forgotten while others can be."""
        self.input = _bucket(limit.input_tokens, limit, now)
        self.output = _bucket(limit.output_tokens, limit, now)
        self.requests = _bucket(limit.requests, limit, now)
        self.untold_input = self.untold_output = self.untold_requests = 0

    def refusal(self, input_tokens: int, now: float) -> Refusal | None:
        """Why a request may not pass now; takes nothing."""
        if self.requests is not None and self.requests.fill(now) < 1:
            return self._refused(TOO_MANY_REQUESTS, 1, self.requests.wait_s(1, now))
        if self.input is not None and self.input.fill(now) < input_tokens:
            return self._refused(TOO_MUCH_INPUT, input_tokens, self.input.wait_s(input_tokens, now))
        if self.output is not None and self.output.fill(now) < 1:
            return self._refused(TOO_MUCH_OUTPUT, 1, self.output.wait_s(1, now))
        return None

    def _refused(self, words: str, units: int, wait_s: float) -> Refusal:
        kind, _, name = self.key.partition(" ")
        return refusal_of(self.limit, words, units, wait_s, user=name if kind == _USER else "")

    def take(self, input_tokens: int) -> None:
        """Take what a request needs that was not refused just now."""
        if self.requests is not None:
            self.untold_requests += 1
            self.requests.spend(1)
        if self.input is not None:
            self.untold_input += input_tokens
            self.input.spend(input_tokens)

    def settle(self, estimated: int, usage: Usage | None, now: float) -> None:
        """Put the estimate right and take the answer's tokens; one for which no engine was asked still is a request."""
        if usage is None:
            return
        if self.input is not None and (usage.input_tokens or usage is NOT_ASKED):
            self.untold_input += usage.input_tokens - estimated
            self.input.settle(usage.input_tokens - estimated, now)
        if self.output is not None:
            self.untold_output += usage.output_tokens
            self.output.settle(usage.output_tokens, now)

    @property
    def used_at(self) -> float:
        """When somebody last asked of it; the fast lane asks its buckets and nobody else."""
        return max((one.at for one in (self.input, self.output, self.requests) if one is not None), default=0.0)

    def tell(self) -> Spent:
        """What was taken here since the last time: input tokens, output tokens, requests."""
        spent = self.untold_input, self.untold_output, self.untold_requests
        self.untold_input = self.untold_output = self.untold_requests = 0
        return spent

    def take_told(self, spent: Spent, now: float) -> None:
        """Another process of this router let so much pass."""
        for bucket, units in zip((self.input, self.output, self.requests), spent, strict=True):
            if bucket is not None:
                bucket.settle(units, now)


def _bucket(amount: int | None, limit: Limit, now: float) -> Bucket | None:
    return None if amount is None else Bucket(amount=amount, period_s=limit.period_s, now=now)


def refusal_of(limit: Limit, words: str, units: int, wait_s: float, *, user: str = "") -> Refusal:
    """Why a request may not pass, in Kthena's words and then ours: whose budget, how large it is, and what helps."""
    whose = f'user "{user}"' if user else f'the route of "{limit.key}"'
    amount, what, reason = {
        TOO_MUCH_INPUT: (limit.input_tokens, "input tokens", "input_rate_limit"),
        TOO_MUCH_OUTPUT: (limit.output_tokens, "output tokens", "output_rate_limit"),
        TOO_MANY_REQUESTS: (limit.requests, "requests", "rate_limit"),
    }[words]
    takes = f", and this prompt takes about {units}" if words == TOO_MUCH_INPUT else ""
    never = math.isinf(wait_s)
    helps = "send a shorter prompt, or have the limit raised" if never else f"try again in {math.ceil(wait_s)} s"
    said = (
        f"{words}: {whose} has {amount} {what} a {_UNITS.get(limit.period_s, f'{limit.period_s:g} s')}{takes}; {helps}"
    )
    return Refusal(STATUS, reason, said, None if never else wait_s)


class Limits:
    """The guard of all budgets that this router keeps by itself."""

    def __init__(self) -> None:
        self._routes: dict[str, Budget] = {}
        self._rules: Mapping[str, Limit] = {}
        self._tenants: OrderedDict[str, Budget] = OrderedDict()
        self._untold: set[Budget] | None = None
        """Budgets that were taken from since the other processes were told; None: nobody asked to be told."""
        self.changes = 0
        """Counts whatever changes whose budget is which."""

    def set_routes(self, limits: Mapping[str, Limit], now: float) -> None:
        """Take the routes' limits; a budget whose limit stays the same keeps what is left of it, one that is gone ends."""
        kept = {budget.limit: budget for budget in self._routes.values()}
        local = {limit for limit in limits.values() if not limit.redis}
        made = {limit: kept.get(limit) or Budget(limit, now, f"{_ROUTE} {limit.key}") for limit in local}
        self._routes = {name: made[limit] for name, limit in limits.items() if limit in made}
        self.changes += 1

    def set_tenants(self, rules: Mapping[str, Limit]) -> None:
        """Take the tenants' limits; who has the same limit as before keeps what is left of it."""
        self._rules = rules
        self.changes += 1
        for user in [user for user, budget in self._tenants.items() if self._rule_of(user) != budget.limit]:
            del self._tenants[user]

    def admit(self, question: Question, now: float) -> Refusal | None:
        """Take the request's share of every budget it falls under, or of none."""
        route = self._routes.get(question.model)
        tenant = self._tenant(question.user, now) if self._rules else None
        tokens = question.input_tokens
        refusal = route.refusal(tokens, now) if route is not None else None
        if refusal is None and tenant is not None:
            refusal = tenant.refusal(tokens, now)
        if refusal is not None:
            return refusal
        if route is not None:
            route.take(tokens)
        if tenant is not None:
            tenant.take(tokens)
        if self._untold is not None:
            self._untold.update(one for one in (route, tenant) if one is not None)
        return None

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """Settle what the engine counted."""
        route = self._routes.get(question.model)
        tenant = self._tenants.get(question.user) if self._rules else None
        if route is not None:
            route.settle(question.input_tokens, usage, now)
        if tenant is not None:
            tenant.settle(question.input_tokens, usage, now)
        if self._untold is not None:
            self._untold.update(one for one in (route, tenant) if one is not None)

    def budgets_of(self, model: str, user: str, now: float) -> tuple[Budget | None, Budget | None] | None:
        """The route's and the tenant's; None where other processes are told of them."""
        route, tenant = self._routes.get(model), self._tenant(user, now) if self._rules else None
        if self._untold is not None and (route is not None or tenant is not None):
            return None
        return route, tenant

    def tell(self) -> dict[str, Spent]:
        """What was taken here since the last time, for the other processes of this router: theirs is the same budget."""
        if self._untold is None:  # whoever asks once is told from then on, and nobody takes without a word any more
            self.changes += 1
        untold, self._untold = self._untold or set(), set()
        while len(untold) > MOST_TOLD:
            self._untold.add(untold.pop())
        return {one.key: one.tell() for one in untold}

    def take_told(self, told: Mapping[str, Spent], now: float) -> None:
        """What other processes of this router let pass."""
        routes = {one.limit.key: one for one in self._routes.values()}
        for key, spent in told.items():
            kind, _, name = key.partition(" ")
            budget = routes.get(name) if kind == _ROUTE else self._tenant(name, now) if self._rules else None
            if budget is not None:
                budget.take_told(spent, now)

    def _rule_of(self, user: str) -> Limit | None:
        return self._rules.get(user) or self._rules.get("*")

    def _tenant(self, user: str, now: float) -> Budget | None:
        known = self._tenants.get(user)
        if known is not None:
            self._tenants.move_to_end(user)
            known.placed_at = now
            return known
        rule = self._rule_of(user)
        if rule is None:
            return None
        if len(self._tenants) >= MOST_TENANTS:
            self._forget_one()
        budget = self._tenants[user] = Budget(rule, now, f"{_USER} {user}")
        return budget

    def _forget_one(self) -> None:
        """The one that was idle longest. Who has used his budget since he got his place goes to the end first, once for each use, and
        so does who is in the fast lane, which would look all of its ways up anew; a thousand are at most (`ways.py`).
        """
        for _ in range(MOST_TENANTS):
            user, oldest = next(iter(self._tenants.items()))
            if oldest.used_at <= oldest.placed_at and not oldest.lent:
                break
            oldest.placed_at = oldest.used_at
            self._tenants.move_to_end(user)
        _, forgotten = self._tenants.popitem(last=False)
        if forgotten.lent:
            self.changes += 1
