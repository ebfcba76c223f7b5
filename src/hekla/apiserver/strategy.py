"""What is special about one resource: how it is decoded, defaulted, checked. The rest of the server is the same for all.

`strategies.py` builds one for every built-in kind and one for every version of a custom resource.
"""

from dataclasses import dataclass, field
from typing import Protocol

from hekla.api.meta import Document, Kind
from hekla.api.schema import Schema
from hekla.apiserver.fielderrors import FieldError


@dataclass(slots=True)
class Decoded:
    """A body that was understood."""

    document: Document
    unknown: list[str] = field(default_factory=list)
    """Sentences on unknown and duplicate fields (`unknown field "spec.x"`): an error if strict, warnings otherwise."""


class Strategy(Protocol):
    """The rules of one served version of one resource. Pure: documents in, documents and errors out."""

    @property
    def kind(self) -> Kind:
        """What it is the strategy of."""

    @property
    def schema(self) -> Schema:
        """The kind's fields."""

    def decode(self, body: bytes, content_type: str) -> Decoded:
        """Parse JSON or YAML and check it against the types as Go's decoder would; raises StatusError 400."""

    def check_types(self, document: Document, *, is_partial: bool = False) -> list[str]:
        """The same for a document that a patch produced: normalises it in place, returns the unknown fields.

        `is_partial` is for what server-side apply sends: nothing is added that was not said, and zeros stay.
        """

    def prepare_create(self, document: Document) -> Document:
        """Default, prune, normalise quantities; drop what a creator may not set (status)."""

    def settle_create(self, document: Document) -> None:
        """Complete a new object with what depends on all of it, once everybody outside has changed it; changes it in place."""

    def prepare_update(self, new: Document, old: Document, subresource: str = "") -> Document:
        """Default and prune; keep of `old` what this call may not change (status, or all but status); set generation.

        What is kept is shared with `old`, not copied: neither may be changed in place where the other still matters.
        """

    def validate_create(self, document: Document) -> list[FieldError]:
        """What is wrong with a new object."""

    def validate_update(self, new: Document, old: Document, subresource: str = "") -> list[FieldError]:
        """What is wrong with a change."""

    def warnings(self, new: Document, old: Document | None = None) -> list[str]:
        """What the user should know although it is allowed; without `old` the object is a new one."""
