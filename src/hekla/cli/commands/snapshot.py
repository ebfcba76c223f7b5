"""Write what the scheduler decides by at this moment into a file, with what it decides: `hekla replay` does it again.

The scheduler runs one whole cycle for it, in which all who wait are looked at anew. Where it offers no snapshots
(Volcano's own, or one that is not registered) the objects are read one kind after the other: without the decisions, and
without what only the scheduler's memory holds. Secrets, environment, commands and foreign annotations stay out.

Examples:

  hekla snapshot -o monday.hekla

  hekla snapshot --anonymize -o for-the-bug-report.hekla
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli.options import Kubeconfig, SchedulerName

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection
    from hekla.scheduler.snapshot import Snapshot

CONFIG_MAP = "/api/v1/namespaces/volcano-system/configmaps/volcano-scheduler-configmap"

OutputFile = Annotated[
    str, typer.Option("-o", "--output", metavar="FILE", help="Where to write it; `-` for standard output.")
]
Anonymize = Annotated[bool, typer.Option("--anonymize", help="Put pseudonyms in the place of names and label values.")]
Key = Annotated[
    str,
    typer.Option("--key", help="With --anonymize: equal keys give equal endings to equal names.", show_default=False),
]


def run(
    output: OutputFile = "snapshot.hekla", anonymize: Anonymize = False, key: Key = "",
    scheduler_name: SchedulerName = "volcano", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Take a snapshot."""
    from hekla.cli.connection import run_connected
    from hekla.scheduler.snapshot import packed

    snapshot = run_connected(kubeconfig, lambda connection: taken(connection, scheduler_name))
    if anonymize:
        snapshot = _anonymous(snapshot, key)
    _write(output, packed(snapshot))
    if output != "-":
        typer.echo(f"{output}: {_told(snapshot)}")


async def taken(connection: "Connection", scheduler_name: str = "volcano") -> "Snapshot":
    """The scheduler's own snapshot, or one made of lists of objects where it has none."""
    from hekla.api.explanation import SNAPSHOT
    from hekla.cli.why_asking import of_scheduler
    from hekla.kube.errors import NotFoundError
    from hekla.scheduler.snapshot import from_documents

    try:
        found = await of_scheduler(connection, SNAPSHOT, scheduler_name)
    except NotFoundError as error:
        if "scheduler" in str(error):  # the scheduler's own words
            raise
        typer.echo("the scheduler here offers no snapshots; its objects are read instead", err=True)
        return await listed(connection)
    return from_documents([found["head"], *found["objects"]])


async def listed(connection: "Connection") -> "Snapshot":
    """A snapshot of what the API server has, as a scheduler that has just started would see it."""
    import time

    from hekla import __version__
    from hekla.scheduler.snapshot import SNAPSHOT_KINDS, Snapshot, typed

    documents = [document for kind in SNAPSHOT_KINDS for document in await _list(connection, kind.kind_info)]
    text, source = await _configuration(connection)
    return Snapshot(
        objects=tuple(typed(document) for document in documents), configuration=text, source=source,
        scheduler_names=("volcano",), wall_s=time.time(), made_by=__version__,
    )  # fmt: skip


async def _list(connection: "Connection", kind: "Kind") -> "list[Document]":
    """The objects of a kind; none where the server does not have it."""
    from hekla.kube.errors import NotFoundError

    try:
        return list((await connection.client.list_documents(kind)).items)
    except NotFoundError:
        return []


async def _configuration(connection: "Connection") -> tuple[str, str]:
    from hekla.kube.errors import NotFoundError
    from hekla.scheduler.configuration import DEFAULT_TEXT
    from hekla.scheduler.reload import BUILT_IN, KEY

    try:
        found = await connection.client.request("GET", CONFIG_MAP)
    except NotFoundError:
        return DEFAULT_TEXT, BUILT_IN
    return found.get("data", {}).get(KEY, DEFAULT_TEXT), "configmap volcano-system/volcano-scheduler-configmap"


def _anonymous(snapshot: "Snapshot", key: str) -> "Snapshot":
    import hashlib
    import secrets

    from hekla.cli.main import CommandError
    from hekla.scheduler.pseudonyms import AnonymityError, anonymous

    try:
        return anonymous(snapshot, hashlib.sha256(key.encode()).digest() if key else secrets.token_bytes(32))
    except AnonymityError as error:
        raise CommandError(str(error)) from None


def _write(output: str, content: bytes) -> None:
    from hekla.cli.main import CommandError

    if output == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        Path(output).write_bytes(content)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}") from None


def _told(snapshot: "Snapshot") -> str:
    from hekla.api.nodes import Node
    from hekla.api.pods import Pod
    from hekla.cli.counting import counted
    from hekla.scheduler.decisions import summary

    size = f"{counted(len(snapshot.of_kind(Node)), 'node')}, {counted(len(snapshot.of_kind(Pod)), 'pod')}"
    return f"{size}; {summary(snapshot.decisions) if snapshot.decisions else 'no decisions recorded'}"
