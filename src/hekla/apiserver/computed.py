"""Resources that are computed when they are asked for, and never stored: their makers hand them to the API server.

They are read by name (verb get) through the same authentication and authorization as everything else, and announced by
discovery. `reviews.py` answers the other unstored resources, which are created.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hekla.api.meta import Document, Kind
from hekla.api.schema import Schema
from hekla.apiserver.bodies import head_of
from hekla.apiserver.builtin_strategy import BuiltinStrategy
from hekla.apiserver.calls import Call
from hekla.apiserver.kind_rules import PLAIN
from hekla.apiserver.presentation import document_answer
from hekla.apiserver.registry import Served
from hekla.apiserver.status import method_not_allowed, no_such_resource
from hekla.wire.messages import Response

READ_ONLY = ("get",)

_FREE_FORM = Schema(
    {
        "type": "object",
        "description": "Computed when it is asked for; never stored.",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        },
    }
)  # fmt: skip


class _ComputedStrategy(BuiltinStrategy):
    """The strategy of a kind that nobody writes: all that is asked of it is what its objects look like."""

    @property
    def schema(self) -> Schema:
        """Any fields."""
        return _FREE_FORM


@dataclass(frozen=True)
class Computed:
    """A read-only resource, and who computes it."""

    kind: Kind
    compute: Callable[[Call], Document | Awaitable[Response]]
    """From a request for one object to the object, or to somebody else's answer; StatusError says why there is none."""

    def served(self) -> Served:
        """How it is announced."""
        kind = self.kind
        return Served(
            kind=kind, strategy=_ComputedStrategy(kind, PLAIN), storage_head=head_of(kind), storage_version=kind.version,
            head=head_of(kind), verbs=READ_ONLY, list_kind=f"{kind.kind}List", is_virtual=True,
        )  # fmt: skip

    def answer(self, call: Call) -> Response | Awaitable[Response]:
        """The answer to a request about it."""
        if call.target.subresource:
            raise no_such_resource()
        if not call.target.name or call.request.method not in {"GET", "HEAD"}:
            raise method_not_allowed()
        found = self.compute(call)
        return document_answer(call, found) if isinstance(found, dict) else found
