"""Whether an object may refer to one of another namespace: only where a ReferenceGrant beside that one says so. Pure.

`http_routes.py` asks for the pools of rules, `listeners.py` for the certificates of listeners.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hekla.api.foreign import ReferenceGrant


class Reference(NamedTuple):
    """Something of a namespace, by group and kind; who refers has no name, as grants do not look at it."""

    group: str
    kind: str
    namespace: str
    name: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def may_refer(who: Reference, to: Reference, grants: Iterable[ReferenceGrant]) -> bool:
    """Whether `who` may refer to `to`; within a namespace everybody may."""
    return who.namespace == to.namespace or any(
        grant.metadata.namespace == to.namespace and _says(grant, who, to) for grant in grants
    )


def _says(grant: ReferenceGrant, who: Reference, to: Reference) -> bool:
    is_from = any((one.group, one.kind, one.namespace) == who[:3] for one in grant.spec.from_)
    return is_from and any(
        (one.group, one.kind) == to[:2] and one.name in (None, "", to.name) for one in grant.spec.to
    )  # fmt: skip
