"""Feeds `rbac.py` from the store: the four kinds, and a counter that grows when any of them changes."""

from collections.abc import Sequence

from hekla.api.meta import Document
from hekla.apiserver.bodies import decode_document
from hekla.apiserver.store import Change, Store

GROUP = "rbac.authorization.k8s.io"
RESOURCES = ("roles", "clusterroles", "rolebindings", "clusterrolebindings")


class StoredRoles:
    """A `RoleSource` over a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = 0
        self._subscriptions = [store.subscribe(self._changed, resource=f"{name}.{GROUP}") for name in RESOURCES]

    @property
    def version(self) -> int:
        """Grows with every durable change."""
        return self._version

    def list(self, resource: str) -> Sequence[Document]:
        """All objects of one of the four kinds."""
        return [decode_document(stored.body) for stored in self._store.list(f"{resource}.{GROUP}")]

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            subscription.close()

    def _changed(self, _changes: Sequence[Change]) -> None:
        self._version += 1
