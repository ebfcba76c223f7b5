"""What differs between built-in kinds, as one value a kind: `kind_rules.py` fills it in, `builtin_strategy.py` uses it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError
from hekla.apiserver.validation.names import NameCheck, dns_subdomain

Change = Callable[[Document], None]
"""Changes a document in place."""

Check = Callable[[Document], list[FieldError]]
CheckUpdate = Callable[[Document, Document], list[FieldError]]


class Generation(Enum):
    """When `metadata.generation` grows."""

    NONE = "never"
    """The kind has no generation."""

    FIRST = "first"
    """It is 1 and stays so."""

    SPEC = "spec"
    """When anything but metadata and status changes."""


def nothing(document: Document) -> None:
    """No defaults."""


def no_errors(document: Document) -> list[FieldError]:
    """Nothing to check beyond metadata."""
    return []


def no_update_errors(new: Document, old: Document) -> list[FieldError]:
    """Every change is allowed."""
    return []


def empty_status(document: Document) -> None:
    """What most kinds do with the status a creator sent."""
    document["status"] = {}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The hooks of one kind. All are pure; those that change a document change the one they are given."""

    default: Change = nothing
    """Fill in what was not said; applied to every document that comes in."""

    create: Change = nothing
    """What happens to a new object only: its status, allocated values."""

    settle: Change = nothing
    """What follows from a new object as it will be stored: after webhooks, and once."""

    update: Callable[[Document, Document], None] = lambda new, old: None
    """What of `old` a change keeps although `new` lacks it."""

    check: Check = no_errors
    check_new: Check = no_errors
    """What only a new object must keep to, on top of `check`."""

    check_update: CheckUpdate = no_update_errors
    check_status: CheckUpdate = no_update_errors
    name: NameCheck = dns_subdomain
    generation: Generation = Generation.NONE
    keeps_labels_on_status: bool = False
    """Whether a write of /status leaves labels as they were."""
