r"""List objects, or show some.

Examples:

  hekla get pods -A

  hekla get vcjob train -o yaml

  hekla get queues,podgroups -w

  hekla get all -n research

  hekla get pod/train-worker-0 -o json

  hekla get pods -o jsonpath='{range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}'

  hekla get vcjob -o custom-columns=NAME:.metadata.name,PHASE:.status.state.phase
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli import completion
from hekla.cli.options import AllNamespaces, Kubeconfig, Namespace, Output, Selector

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection
    from hekla.cli.resources import Selection


def run(
    words: Annotated[
        list[str],
        typer.Argument(metavar="TYPE[/NAME] [NAME...]", show_default=False, autocompletion=completion.types_and_names),
    ],
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    field_selector: Annotated[
        str, typer.Option("--field-selector", help="status.phase=Pending", show_default=False)
    ] = "",
    output: Output = "",
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Go on, and print every change.")] = False,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Leave the headings out.")] = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """List objects."""
    from hekla.cli.connection import run_connected

    query = Query(namespace, all_namespaces, selector, field_selector, output, not no_headers)
    run_connected(kubeconfig, lambda connection: show(connection, words, query, watch=watch))


class Query:
    """What to list and how to print it."""

    def __init__(self, namespace: str, everywhere: bool, labels: str, fields: str, output: str, headers: bool) -> None:
        self.namespace, self.everywhere, self.labels, self.fields = namespace, everywhere, labels, fields
        self.output, self.headers = output, headers

    def path(self, selection: "Selection", name: str, default_namespace: str, **more: str) -> str:
        """The URL of one object, or of the collection."""
        from urllib.parse import urlencode

        kind = selection.served.kind
        namespace = "" if self.everywhere else (self.namespace or default_namespace)
        query = {"labelSelector": self.labels, "fieldSelector": self.fields, **more}
        filled = urlencode({key: value for key, value in query.items() if value})
        return kind.path(namespace, name) + (f"?{filled}" if filled else "")


async def show(connection: "Connection", words: list[str], query: Query, *, watch: bool) -> None:
    """Print what the words name."""
    import asyncio

    from hekla.cli.resources import discover, parse_selection

    selections = parse_selection(words, await discover(connection))
    if query.output in ("", "wide"):
        await _print_all_tables(connection, selections, query)
    else:
        await _print_documents(connection, selections, query)
    if watch:
        async with asyncio.TaskGroup() as group:
            for selection in selections:
                group.create_task(_watch(connection, selection, query, is_alone=len(selections) == 1))


async def _print_all_tables(connection: "Connection", selections: "list[Selection]", query: Query) -> None:
    from hekla.cli.names import namespace_hint

    is_alone, found = len(selections) == 1, 0
    for selection in selections:
        text = await _table(connection, selection, query, is_alone=is_alone)
        if text:
            typer.echo(("\n" if found else "") + text)
            found += 1
    if not found:
        is_anywhere = query.everywhere or not any(one.served.kind.is_namespaced for one in selections)
        namespace = query.namespace or connection.default_namespace
        typer.echo(f"No resources found{'' if is_anywhere else f' in {namespace} namespace'}.", err=True)
        # a misspelt namespace is as empty as any
        if not is_anywhere and (unknown := await namespace_hint(connection, namespace)):
            typer.echo(f"hekla: {unknown}", err=True)


async def _table(connection: "Connection", selection: "Selection", query: Query, *, is_alone: bool) -> str:
    from hekla.cli.tables import table_text

    tables = [
        await connection.table(query.path(selection, name, connection.default_namespace))
        for name in selection.names or ("",)
    ]
    wide, prefix = query.output == "wide", "" if is_alone else _prefix(selection)
    return table_text(tables, wide=wide, namespaces=query.everywhere, headers=query.headers, prefix=prefix)


def _prefix(selection: "Selection") -> str:
    """`deployment.apps/`: where several types are shown, names say theirs."""
    kind = selection.served.kind
    return f"{kind.singular}{'.' + kind.group if kind.group else ''}/"


async def _print_documents(connection: "Connection", selections: "list[Selection]", query: Query) -> None:
    from hekla.cli.output import print_document

    documents: list[Document] = []
    for selection in selections:
        for name in selection.names or ("",):
            document = await connection.client.request("GET", query.path(selection, name, connection.default_namespace))
            documents += [document] if name else _items(document)
    is_one = len(selections) == 1 and len(selections[0].names) == 1
    whole: Any = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": documents}
    print_document(_without_managed_fields(documents[0] if is_one else whole), query.output, headers=query.headers)


def _items(listed: "Document") -> "list[Document]":
    kind = str(listed["kind"]).removesuffix("List")
    return [{"apiVersion": listed["apiVersion"], "kind": kind, **item} for item in listed["items"] or ()]


def _without_managed_fields(document: "Document") -> "Document":
    for one in document.get("items", [document]):
        one.get("metadata", {}).pop("managedFields", None)
    return document


async def _watch(connection: "Connection", selection: "Selection", query: Query, *, is_alone: bool) -> None:
    """Print what changes from now on, as rows or as documents."""
    import json

    from hekla.cli.connection import TABLE
    from hekla.cli.output import print_document
    from hekla.cli.tables import table_text
    from hekla.kube.answers import lines
    from hekla.wire.messages import Request

    listed = await connection.client.request("GET", query.path(selection, "", connection.default_namespace, limit="1"))
    name = selection.names[0] if selection.names else ""
    more = {"fieldSelector": f"metadata.name={name}"} if name else {}
    revision = listed["metadata"]["resourceVersion"]
    path = query.path(selection, "", connection.default_namespace, watch="true", resourceVersion=revision, **more)
    wide, prefix = query.output == "wide", "" if is_alone else _prefix(selection)
    is_table = wide or not query.output
    columns: list[Document] = []
    accept = {"accept": TABLE if is_table else "application/json"}
    async for line in lines(connection.transport.stream(Request("GET", path, accept))):
        event = json.loads(line)
        if event["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
            continue
        if is_table:
            table = event["object"]
            # the columns come with the first event only
            columns = table["columnDefinitions"] = table.get("columnDefinitions") or columns
            typer.echo(table_text([table], wide=wide, namespaces=query.everywhere, headers=False, prefix=prefix))
        else:
            print_document(_without_managed_fields(event["object"]), query.output, headers=False)
