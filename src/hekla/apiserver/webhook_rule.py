"""Webhooks of the peers as values: what a rule looks at, what it changes, and why it refuses, in the webhook's words.

A refusal reads as if the webhook had been called: `admission webhook "validatejob.volcano.sh" denied the request: ...`.
The `admission.py` of each feature lists its rules; the files beside it say what they check.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from hekla.api.meta import Document, Resource
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.status import StatusError

CREATE = frozenset({Operation.CREATE})
WRITE = frozenset({Operation.CREATE, Operation.UPDATE})
ANY = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})

Change = Callable[[AdmissionRequest, Reader], None]
Refusal = Callable[[AdmissionRequest, Reader], str]
"""A sentence that says what is wrong; empty if nothing is."""


@dataclass(frozen=True, kw_only=True)
class WebhookRule:
    """One webhook: an `AdmissionRule`."""

    name: str
    resource: str
    operations: frozenset[Operation]
    change: Change | None = None
    refusal: Refusal | None = None
    reads_annotations: bool = False
    """Whether it looks at more of an object that is changed than at its spec."""

    is_by_kind: ClassVar[bool] = True
    goes_by_template: bool = False
    """See `AdmissionRule.wants`."""

    def wants(self, request: AdmissionRequest) -> bool:
        """Whether the webhook is registered for such a write."""
        return (
            request.kind.resource == self.resource and request.operation in self.operations and not request.subresource
        )

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Write defaults."""
        if self.change is not None:
            self.change(request, reader)

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Refuse, or let pass."""
        said = self.refusal(request, reader).strip() if self.refusal is not None else ""
        if said:
            resource, _, group = self.resource.partition(".")
            about = {"name": request.name, "group": group, "kind": resource}
            raise StatusError(400, "", f'admission webhook "{self.name}" denied the request: {said}', details=about)


def is_readable(document: Document, kind: type[Resource]) -> bool:
    """Whether a document has its kind's shape. Defaults are written before the schema is checked, which then says what is
    wrong better than a default could.
    """
    try:
        msgspec.convert(document, kind)
    except msgspec.ValidationError:
        return False
    return True


def go_list(items: Sequence[object]) -> str:
    """A list as Go prints it: `[a b c]`."""
    return f"[{' '.join(str(item) for item in items)}]"


def go_errors(errors: Sequence[str]) -> str:
    """Several errors as Volcano's multierror prints them."""
    if not errors:
        return ""
    count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    return f"{count} occurred:\n\t" + "\n\t".join(f"* {one}" for one in errors) + "\n\n"


def aggregate(errors: Sequence[str]) -> str:
    """Several field errors as Kubernetes joins them."""
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""
