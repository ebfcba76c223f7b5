"""Lists with every way to print them: columns, wide, JSON, YAML, names; once, or again with every change."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from hekla.cli.volcano.columns import Column, Rows
from hekla.cli.volcano.lookups import listed

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What to list, and how."""

    kind: "Kind"
    columns: Sequence[Column]
    namespace: str = ""
    """Empty: all of them."""

    output: str = ""
    is_watched: bool = False
    is_wanted: "Callable[[Document], bool]" = lambda _: True
    why_empty: "Callable[[Connection], Awaitable[str]] | None" = None
    """What to say after `No resources found`: a queue that is misspelt has no jobs."""

    async def show(self, connection: "Connection") -> None:
        """Print what there is; with a watch, what changes from then on."""
        page = await listed(connection, self.kind, self.namespace)
        documents = [one for one in page.items if self.is_wanted(one)]
        rows = Rows(self.columns, wide=self.output == "wide", namespaces=self.kind.is_namespaced and not self.namespace)
        self._print_all(documents, rows)
        if not documents and self.why_empty is not None and (why := await self.why_empty(connection)):
            typer.echo(f"hekla: {why}", err=True)
        if self.is_watched:
            await self._watch(connection, page.resource_version, rows)

    def _print_all(self, documents: "Sequence[Document]", rows: Rows) -> None:
        from hekla.cli.output import print_document

        if self.output not in ("", "wide"):
            items = [without_managed_fields(one) for one in documents]
            print_document({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}, self.output)
        elif documents or self.is_watched:
            typer.echo(rows.table(documents))
        else:
            where = f" in {self.namespace} namespace" if self.namespace else ""
            typer.echo(f"No resources found{where}.", err=True)

    async def _watch(self, connection: "Connection", revision: str, rows: Rows) -> None:
        from hekla.cli.output import print_document

        while True:  # a server ends every watch after a while; the next one goes on where that one ended
            events = connection.client.watch_documents(self.kind, self.namespace, resource_version=revision)
            async for event in events:
                revision = event.resource_version or revision
                if event.type == "BOOKMARK" or not self.is_wanted(event.object):
                    continue
                if self.output in ("", "wide"):
                    typer.echo(rows.row(event.object))
                else:
                    print_document(without_managed_fields(event.object), self.output)


def without_managed_fields(document: "Document") -> "Document":
    """The object without the record of who wrote which field."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return {**document, "metadata": metadata}
