"""Tells the world of every object that routing looks at, as informers see it change.

A kind that the cluster does not have, or may not be read, is waited for by its informer; the others are told meanwhile. Without
the Gateway API's kinds, or external providers, a router is ready: there are none then.
"""

from collections.abc import Callable
from typing import Any, Final

import structlog

from hekla.api.core import Pod, Secret
from hekla.api.foreign import Gateway, GatewayClass, HttpRoute, InferencePool, ReferenceGrant
from hekla.api.kthena import ExternalModelProvider, ModelRoute, ModelServer
from hekla.api.meta import Resource
from hekla.kube.informer import Informer, Informers
from hekla.serving.router.certificate_pairs import TLS_SECRET
from hekla.serving.router.world import GATEWAY_KINDS, KINDS, SECRET_SELECTOR, World

log = structlog.get_logger(__name__)


OPTIONAL: Final[tuple[type[Resource], ...]] = (
    ExternalModelProvider, Gateway, GatewayClass, HttpRoute, InferencePool, ReferenceGrant,
)  # fmt: skip
"""Kinds that a cluster may lack: whoever upgrades from an early Kthena, or has the Gateway API without InferencePools."""

_NEEDED: Final = (ModelRoute, ModelServer, Pod)
"""Kinds that no request can be answered without."""
SURE_REFUSALS: Final = 4
"""So many times in a row, within a second."""


class Discovery:
    """The informers of one router."""

    def __init__(self, informers: Informers, world: World, *, namespace: str = "", with_gateways: bool = False) -> None:
        self._world = world
        kinds = (*KINDS, *GATEWAY_KINDS) if with_gateways else KINDS
        self._followed: list[tuple[Informer[Any], Callable[[Any, Any], None]]] = []
        for kind in kinds:
            selector = SECRET_SELECTOR if kind is Secret else ""
            informer: Informer[Any] = informers.of(kind, namespace=namespace, label_selector=selector)
            self._followed.append((informer, self._told))
        if with_gateways:
            certificates = informers.of(Secret, namespace=namespace, field_selector=f"type={TLS_SECRET}")
            self._followed.append((certificates, world.note_certificate))

    def begin(self) -> None:
        """Tell of what is known, and from now on of each change."""
        for informer, told in self._followed:
            informer.add_handler(told)

    def end(self) -> None:
        """Tell no more."""
        for informer, told in self._followed:
            informer.remove_handler(told)

    @property
    def missing(self) -> list[str]:
        """Kinds that are not known yet, as `kubectl` calls them, and why."""
        missing = [one for one, _ in self._followed if not _is_enough(one)]
        return [f"{one.kind.kind_info.resource} ({one.trouble or 'being read'})" for one in missing]

    @property
    def is_blind(self) -> bool:
        """Whether what no request can be answered without is to come yet: routes, servers or pods.

        What the API server forbids will not come: requests are answered by what else there is, if it told anything at all.
        """
        kinds = [one for one, _ in self._followed if one.kind in _NEEDED]
        has_any = any(one.is_known for one in kinds)
        return not has_any or not all(one.is_known or one.is_forbidden for one in kinds)

    @property
    def refused(self) -> str:
        """Why the API server lets the router read none of what it waits for, once that is sure: a server that has just begun refuses
        for a moment whom it does not know yet. Empty: it lets it, or nothing is sure.
        """
        kinds = [one for one, _ in self._followed if one.kind in _NEEDED and not one.is_known]
        return kinds[0].trouble if kinds and all(one.refusals >= SURE_REFUSALS for one in kinds) else ""

    def known(self, kind: type[Resource]) -> list[Resource]:
        """The objects of a kind; none of a kind that is not followed."""
        return [one for informer, _ in self._followed if informer.kind is kind for one in informer.cache]

    def _told(self, old: Resource | None, new: Resource | None) -> None:
        """One object that routing cannot digest must not keep it from the others."""
        try:
            self._world.note(old, new)
        except Exception:  # a mistake of ours about one object
            told = new if new is not None else old
            name = told.metadata.name if told is not None else ""
            log.exception("an object met a mistake of the router", kind=type(told).__name__, name=name)


def _is_enough(one: Informer[Any]) -> bool:
    """Whether requests can be answered by what is known of a kind."""
    if one.kind in (ReferenceGrant, GatewayClass) and one.trouble:
        return True  # where none may be read nothing is granted, and classes are known by name
    return one.is_known if one.kind in OPTIONAL else one.is_synced
