"""What can be done to JobFlows and JobTemplates, which have the same commands."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from hekla.cli.main import EXIT_USAGE, CommandError
from hekla.cli.volcano.columns import (
    Column,
    PeerColumn,
    age_of,
    name_of,
    namespace_of,
    peer_table,
    phase_of,
    status_number,
)
from hekla.cli.volcano.listing import without_managed_fields
from hekla.cli.volcano.lookups import found, listed

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection

_NAMES = (PeerColumn("Name", name_of, gap=4), PeerColumn("Namespace", namespace_of, gap=4))
PEER_COLUMNS = {
    "JobFlow": (*_NAMES, PeerColumn("Phase", phase_of, gap=4), PeerColumn("Age", age_of, gap=4)),
    "JobTemplate": _NAMES,
}


def _words(*path: str) -> "Column":
    def read(document: "Document") -> str:
        value: object = document
        for key in path[1:]:
            value = value.get(key) if isinstance(value, dict) else None
        names = [one.get("name", "") for one in value if isinstance(one, dict)] if isinstance(value, list) else []
        return ",".join(names) or "<none>"

    return Column(path[0], read, is_wide=True)


COLUMNS = {
    "JobFlow": (
        Column("Name", name_of),
        Column("Phase", phase_of),
        Column("Flows", lambda flow: len((flow.get("spec") or {}).get("flows") or ())),
        Column("Pending", lambda flow: _count(flow, "pendingJobs")),
        Column("Running", lambda flow: _count(flow, "runningJobs")),
        Column("Completed", lambda flow: _count(flow, "completedJobs")),
        Column("Failed", lambda flow: _count(flow, "failedJobs")),
        Column("Age", age_of),
        _words("Steps", "spec", "flows"),
    ),
    "JobTemplate": (
        Column("Name", name_of),
        Column("Replicas", lambda template: _replicas(template)),
        Column("Age", age_of),
        _words("Tasks", "spec", "tasks"),
    ),
}
"""Ours, by kind."""


def _count(flow: "Document", field: str) -> int:
    value = (flow.get("status") or {}).get(field)
    return len(value) if isinstance(value, list) else status_number(field)(flow)


def _replicas(template: "Document") -> int:
    return sum(int(task.get("replicas") or 0) for task in (template.get("spec") or {}).get("tasks") or ())


def _documents(file: str, kind: "Kind") -> Iterator["Document"]:
    from hekla.cli.manifests import read_manifests

    if not file:
        raise CommandError(f"no file is named; say with -f FILE which {kind.singular} you mean", EXIT_USAGE)
    for manifest in read_manifests([file]):
        if (manifest.document["apiVersion"], manifest.document["kind"]) != (kind.api_version, kind.kind):
            held = f"{manifest.document['apiVersion']} {manifest.document['kind']}"
            raise CommandError(f"{manifest.source} holds a {held}, not a {kind.api_version} {kind.kind}")
        yield manifest.document


async def create_all(connection: "Connection", kind: "Kind", file: str, namespace: str = "default") -> None:
    """Create every object of a file; those that are refused are told, and the others are created all the same."""
    from hekla.cli.connection import refusal_text
    from hekla.kube.errors import ApiError

    documents, refused = list(_documents(file, kind)), 0
    for one in documents:
        where = one["metadata"].get("namespace") or namespace
        try:
            await connection.client.create_document(kind, one, where)
        except ApiError as error:
            refused += 1
            typer.echo(f"Failed to create {kind.kind}: {refusal_text(error)}", err=True)
        else:
            typer.echo(f"Created {kind.kind}: {where}/{name_of(one)}")
    _tell_refused(refused, len(documents))


async def delete_all(connection: "Connection", kind: "Kind", file: str, namespace: str = "default") -> None:
    """Delete every object that a file names."""
    from hekla.cli.connection import refusal_text
    from hekla.kube.errors import ApiError

    documents, refused = list(_documents(file, kind)), 0
    for one in documents:
        where = one["metadata"].get("namespace") or namespace
        try:
            await connection.client.delete_document(kind, name_of(one), where)
        except ApiError as error:
            refused += 1
            typer.echo(f"Failed to delete {kind.kind}: {refusal_text(error)}", err=True)
        else:
            typer.echo(f"Deleted {kind.kind}: {where}/{name_of(one)}")
    _tell_refused(refused, len(documents))


def _tell_refused(refused: int, total: int) -> None:
    if refused:
        raise CommandError(f"{refused} of {total} objects were refused; the reasons are above")


async def delete_one(connection: "Connection", kind: "Kind", name: str, namespace: str) -> None:
    """Delete one object by its name."""
    await found(connection, kind, name, namespace)
    await connection.client.delete_document(kind, name, namespace)
    typer.echo(f"Deleted {kind.kind}: {namespace}/{name}")


async def peer_flow_list(connection: "Connection", kind: "Kind", namespace: str, name: str = "") -> str:
    """What `vcctl jobflow list` and `get` print; an empty namespace means all."""
    one = [await found(connection, kind, name, namespace)] if name else None
    documents = one or (await listed(connection, kind, namespace)).items
    return peer_table(PEER_COLUMNS[kind.kind], documents) if documents else "No resources found"


async def description(connection: "Connection", kind: "Kind", namespace: str, name: str, form: str) -> str:
    """One object, or all of a namespace, as YAML or JSON."""
    if form not in ("yaml", "json"):
        raise CommandError(f'-o is "{form}"; use yaml or json', EXIT_USAGE)
    one = [await found(connection, kind, name, namespace)] if name else None
    documents = one or (await listed(connection, kind, namespace)).items
    return "\n\n\n".join(_as(form, [without_managed_fields(each) for each in documents]))


def _as(form: str, documents: "Sequence[Document]") -> Iterator[str]:
    import json

    from hekla.cli.output import as_yaml

    for one in documents:
        yield as_yaml(one).rstrip("\n") if form == "yaml" else json.dumps(one, indent=2, ensure_ascii=False)
