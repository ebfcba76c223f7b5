"""Show everything about objects: what was asked for, what is, and what happened.

Examples:

  hekla describe pod train-worker-0

  hekla describe vcjob/train

  hekla describe node
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace, Selector

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection


def run(
    words: Annotated[
        list[str],
        typer.Argument(metavar="TYPE[/NAME] [NAME...]", show_default=False, autocompletion=completion.types_and_names),
    ],
    namespace: Namespace = "",
    selector: Selector = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Describe objects."""
    from hekla.cli.connection import run_connected

    run_connected(kubeconfig, lambda connection: _describe(connection, words, namespace, selector))


async def _describe(connection: "Connection", words: list[str], namespace: str, selector: str) -> None:
    from hekla.cli.resources import discover, parse_selection
    from hekla.cli.terminal import harmless

    namespace = namespace or connection.default_namespace
    texts = []
    for selection in parse_selection(words, await discover(connection)):
        kind = selection.served.kind
        if selection.names:
            found = [await connection.client.get_document(kind, name, namespace) for name in selection.names]
        else:
            found = (await connection.client.list_documents(kind, namespace, label_selector=selector)).items
        for document in found:
            events = await _events(connection, document)
            texts.append(description(document, events))
    typer.echo(harmless("\n\n\n".join(texts)) if texts else "No resources found.")


async def _events(connection: "Connection", document: "Document") -> "list[Document]":
    metadata = document["metadata"]
    where = metadata.get("namespace") or "default"
    fields = f"involvedObject.name={metadata['name']},involvedObject.uid={metadata['uid']}"
    answer = await connection.client.request("GET", f"/api/v1/namespaces/{where}/events?fieldSelector={fields}")
    return sorted(answer["items"] or [], key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))


def description(document: "Document", events: "list[Document]") -> str:
    """The text: identity, then spec and status as they are, conditions and events as tables."""
    metadata = document["metadata"]
    lines = [f"Name:         {metadata['name']}"]
    if metadata.get("namespace"):
        lines.append(f"Namespace:    {metadata['namespace']}")
    lines += _pairs("Labels:       ", metadata.get("labels"))
    lines += _pairs("Annotations:  ", metadata.get("annotations"))
    lines += [f"API Version:  {document['apiVersion']}", f"Kind:         {document['kind']}"]
    lines.append(f"Created:      {metadata.get('creationTimestamp', '')}")
    for owner in metadata.get("ownerReferences", ()):
        lines.append(f"Owner:        {owner['kind']}/{owner['name']}")
    status = dict(document.get("status") or {})
    conditions = status.pop("conditions", [])
    if isinstance(conditions, dict):
        conditions = [conditions]
    rest = {key: value for key, value in document.items() if key not in {"apiVersion", "kind", "metadata", "status"}}
    for name, value in rest.items():
        lines += _section(name.capitalize(), value)
    lines += _section("Status", status)
    lines += _conditions(conditions)
    lines += _event_lines(events)
    return "\n".join(lines)


def _pairs(label: str, pairs: dict[str, str] | None) -> list[str]:
    shown = [f"{key}={value}" for key, value in sorted((pairs or {}).items())] or ["<none>"]
    return [label + shown[0], *(" " * len(label) + one for one in shown[1:])]


def _section(title: str, value: Any) -> list[str]:
    from hekla.cli.output import as_yaml

    if value in (None, {}, []):
        return []
    if not isinstance(value, dict | list):
        return [f"{title}: {value}"]
    return [f"{title}:", *("  " + line for line in as_yaml(value).splitlines())]


def _conditions(conditions: "list[Document]") -> list[str]:
    from hekla.cli.output import columns_text

    rows = [[c.get("type", ""), c.get("status", ""), c.get("reason", ""), c.get("message", "")] for c in conditions]
    if not rows:
        return []
    text = columns_text(["Type", "Status", "Reason", "Message"], rows)
    return ["Conditions:", *("  " + line for line in text.splitlines())]


def _event_lines(events: "list[Document]") -> list[str]:
    from hekla.cli.output import columns_text

    if not events:
        return ["Events:       <none>"]
    rows = [
        [
            e.get("type", ""),
            e.get("reason", ""),
            e.get("lastTimestamp") or e.get("eventTime") or "",
            _source(e),
            e.get("message", ""),
        ]
        for e in events
    ]
    text = columns_text(["Type", "Reason", "Last seen", "From", "Message"], rows)
    return ["Events:", *("  " + line for line in text.splitlines())]


def _source(event: "Document") -> str:
    return str((event.get("source") or {}).get("component") or event.get("reportingComponent") or "")
