"""Puts the scheduler's answers behind the API server: explanations of what waits, and its configuration.

    GET /apis/scheduling.hekla.dev/v1/namespaces/NS/explanations/{pod,podgroup,vcjob,queue}.NAME
    GET /apis/scheduling.hekla.dev/v1/schedulers/volcano
    GET /apis/scheduling.hekla.dev/v1/snapshots/volcano

Whoever may `get` explanations of a namespace hears of jobs of other namespaces by name only where they may list the
pods there. The scheduler starts after the API server; until then the answer is 503. Where it was left out, the question
is passed on to the one that runs as a process of its own and has registered itself (`scheduler_elsewhere.py`).
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hekla.api.explanation import EXPLANATION, SCHEDULER, SNAPSHOT
from hekla.api.meta import Document, Kind
from hekla.apiserver.auth.attributes import Attributes, Authorizer
from hekla.apiserver.calls import Call
from hekla.apiserver.computed import Computed
from hekla.apiserver.routing import Target
from hekla.apiserver.status import StatusError
from hekla.wire.messages import Response

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

ANSWERED: tuple[Kind, ...] = (EXPLANATION, SCHEDULER, SNAPSHOT)
"""What a scheduler can be asked for."""

MOST_NAMESPACES = 256
"""Namespaces that one answer asks authorization about; jobs of further ones stay unnamed."""

MaySee = Callable[[str], bool]
"""Whether the asker may see what runs in a namespace."""


def computed_resources(
    scheduler: "Callable[[], BatchScheduler | None]",
    authorizer: Authorizer,
    elsewhere: Callable[[Call], Awaitable[Response]] | None = None,
) -> list[Computed]:
    """The resources; `scheduler` gives the scheduler that runs here, once one does, and `elsewhere` asks another."""

    def answer(call: Call) -> Document | Awaitable[Response]:
        here = scheduler()
        if here is not None:
            return answer_of(here, call.target, sight(authorizer, call))
        if elsewhere is not None:
            return elsewhere(call)
        raise StatusError(503, "ServiceUnavailable", "no scheduler runs here; it was left out, or is not up yet")

    return [Computed(kind, answer) for kind in ANSWERED]


def answer_of(scheduler: "BatchScheduler", target: Target, may_see: MaySee) -> Document:
    """The answer of a scheduler to a question about one of these resources; StatusError says why there is none."""
    from hekla.scheduler.answers import (
        NothingToExplainError,
        configuration_document,
        explanation,
        snapshot_document,
    )

    try:
        if target.resource == EXPLANATION.plural:
            return explanation(scheduler, target.namespace, target.name, may_see)
        if target.resource == SCHEDULER.plural:
            return configuration_document(scheduler, target.name)
        return snapshot_document(scheduler, target.name)
    except NothingToExplainError as error:
        raise StatusError(404, "NotFound", str(error)) from None


def sight(authorizer: Authorizer, call: Call) -> MaySee:
    """Which namespaces' pods the caller may list, asked once for each."""
    known = {call.target.namespace: True}

    def may_see(namespace: str) -> bool:
        if namespace not in known and len(known) < MOST_NAMESPACES:
            asked = Attributes(user=call.user, verb="list", version="v1", resource="pods", namespace=namespace)
            known[namespace] = authorizer.decide(asked).is_allowed
        return known.get(namespace, False)

    return may_see
