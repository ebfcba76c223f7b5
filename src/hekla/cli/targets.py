"""The objects that a command changes: those named, those that labels select, or all of a type.

`resources.py` says what types there are; each command says what it does to an object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hekla.cli.main import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.cli.resources import Served


@dataclass(frozen=True)
class Target:
    """One object on a server."""

    served: "Served"
    name: str
    path: str
    """Its URL; a subresource's is this and its name."""

    @property
    def label(self) -> str:
        """`deployment.apps/web`, as kubectl names what it did."""
        kind = self.served.kind
        return f"{kind.singular}{'.' + kind.group if kind.group else ''}/{self.name}"


async def targets_of(
    connection: "Connection", words: Sequence[str], namespace: str, *, selector: str = "", every: bool = False
) -> list[Target]:
    """What `TYPE NAME...`, `TYPE/NAME...`, `TYPE -l LABELS` or `TYPE --all` mean; at least one, or CommandError."""
    from hekla.cli.resources import discover, parse_selection

    namespace = namespace or connection.default_namespace
    found: list[Target] = []
    for selection in parse_selection(words, await discover(connection)):
        kind, names = selection.served.kind, selection.names
        if not names and not (selector or every):
            raise CommandError(f"name the {kind.plural}, or select them with -l LABELS or --all", EXIT_USAGE)
        if not names:
            page = await connection.client.list_documents(kind, namespace, label_selector=selector)
            names = tuple(one["metadata"]["name"] for one in page.items)
        found += [Target(selection.served, name, kind.path(namespace, name)) for name in names]
    if not found:
        raise CommandError(f"no {' '.join(words)} found in namespace {namespace}")
    return found
