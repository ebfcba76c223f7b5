"""The strategy of a version that is stored as another: read by its own types, held to the stored version's rules.

So Kubernetes does it: what was sent is converted, then completed and checked. What a version has no field for, and carries
in annotations, has to pass the same checks and may set no more than a field would.
"""

from hekla.api.meta import Document, Kind
from hekla.api.schema import Schema
from hekla.apiserver.conversions import Conversion
from hekla.apiserver.fielderrors import FieldError
from hekla.apiserver.strategy import Decoded, Strategy


class ConvertedStrategy:
    """Rules of one version of a kind that is stored in another one; see `strategy.Strategy`."""

    def __init__(self, own: Strategy, stored: Strategy, conversion: Conversion) -> None:
        self._own, self._stored, self._conversion = own, stored, conversion

    @property
    def kind(self) -> Kind:
        """What it is the strategy of."""
        return self._own.kind

    @property
    def schema(self) -> Schema:
        """The fields of the version that is served."""
        return self._own.schema

    def decode(self, body: bytes, content_type: str) -> Decoded:
        """Parse and check types; raises StatusError 400 with Go's sentence."""
        return self._own.decode(body, content_type)

    def check_types(self, document: Document, *, is_partial: bool = False) -> list[str]:
        """The same for a document that a patch produced; normalises it in place."""
        return self._own.check_types(document, is_partial=is_partial)

    def prepare_create(self, document: Document) -> Document:
        """Default and complete a new object."""
        document.setdefault("metadata", {})
        return self._served(self._stored.prepare_create(self._kept(document)))

    def settle_create(self, document: Document) -> None:
        """What a new object's last word has follow from it."""
        kept = self._kept(document)
        self._stored.settle_create(kept)
        document.update(self._served(kept))

    def prepare_update(self, new: Document, old: Document, subresource: str = "") -> Document:
        """Default a change and keep what it may not change."""
        return self._served(self._stored.prepare_update(self._kept(new), self._kept(old), subresource))

    def validate_create(self, document: Document) -> list[FieldError]:
        """What is wrong with a new object."""
        return self._stored.validate_create(self._kept(document))

    def validate_update(self, new: Document, old: Document, subresource: str = "") -> list[FieldError]:
        """What is wrong with a change."""
        return self._stored.validate_update(self._kept(new), self._kept(old), subresource)

    def warnings(self, new: Document, old: Document | None = None) -> list[str]:
        """What the user should know although it is allowed."""
        return self._stored.warnings(self._kept(new), None if old is None else self._kept(old))

    def _kept(self, document: Document) -> Document:
        return self._conversion.to_storage(document)

    def _served(self, document: Document) -> Document:
        return self._conversion.from_storage(document)
