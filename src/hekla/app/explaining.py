"""Puts the scheduler's answers behind the API server: explanations of what waits, and its configuration.

    GET /apis/scheduling.hekla.dev/v1/namespaces/NS/explanations/{pod,podgroup,vcjob,queue}.NAME
    GET /apis/scheduling.hekla.dev/v1/schedulers/volcano
    GET /apis/scheduling.hekla.dev/v1/snapshots/volcano

Whoever may `get` explanations of a namespace hears of jobs of other namespaces by name only where they may list the
pods there. The scheduler starts after the API server; until then the answer is 503.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hekla.api.explanation import EXPLANATION, SCHEDULER, SNAPSHOT
from hekla.api.meta import Document
from hekla.apiserver.auth.attributes import Attributes, Authorizer
from hekla.apiserver.calls import Call
from hekla.apiserver.computed import Computed
from hekla.apiserver.status import StatusError

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

MOST_NAMESPACES = 256
"""Namespaces that one answer asks authorization about; jobs of further ones stay unnamed."""


def computed_resources(scheduler: "Callable[[], BatchScheduler | None]", authorizer: Authorizer) -> list[Computed]:
    """The resources; `scheduler` gives the scheduler that runs, once one does."""

    def explain(call: Call) -> Document:
        from hekla.scheduler.answers import explanation

        return _found(
            lambda: explanation(_running(scheduler()), call.target.namespace, call.target.name, sight(authorizer, call))
        )

    def configuration(call: Call) -> Document:
        from hekla.scheduler.answers import configuration_document

        return _found(lambda: configuration_document(_running(scheduler()), call.target.name))

    def snapshot(call: Call) -> Document:
        from hekla.scheduler.answers import snapshot_document

        return _found(lambda: snapshot_document(_running(scheduler()), call.target.name))

    return [Computed(EXPLANATION, explain), Computed(SCHEDULER, configuration), Computed(SNAPSHOT, snapshot)]


def sight(authorizer: Authorizer, call: Call) -> Callable[[str], bool]:
    """Which namespaces' pods the caller may list, asked once for each."""
    known = {call.target.namespace: True}

    def may_see(namespace: str) -> bool:
        if namespace not in known and len(known) < MOST_NAMESPACES:
            asked = Attributes(user=call.user, verb="list", version="v1", resource="pods", namespace=namespace)
            known[namespace] = authorizer.decide(asked).is_allowed
        return known.get(namespace, False)

    return may_see


def _running(scheduler: "BatchScheduler | None") -> "BatchScheduler":
    if scheduler is None:
        raise StatusError(503, "ServiceUnavailable", "no scheduler runs here; it was left out, or is not up yet")
    return scheduler


def _found(answer: Callable[[], Document]) -> Document:
    from hekla.scheduler.answers import NothingToExplainError

    try:
        return answer()
    except NothingToExplainError as error:
        raise StatusError(404, "NotFound", str(error)) from None
