"""Print what containers wrote.

Examples:

  hekla logs train-worker-0

  hekla logs -f train-worker-0 -c worker

  hekla logs vcjob/train --tail 5
"""

from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

LONGEST_LINE = 64 * 1024
"""Bytes of a line that are waited for: a program may draw its progress without ever ending one."""

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def run(
    target: Annotated[
        str, typer.Argument(metavar="POD | TYPE/NAME", show_default=False, autocompletion=completion.pods_or_types)
    ],
    container: Annotated[
        str, typer.Option("-c", "--container", help="Which container; what the pod says, or the first, by default.")
    ] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the container ends.")] = False,
    previous: Annotated[bool, typer.Option("-p", "--previous", help="The container before its last restart.")] = False,
    tail: Annotated[int, typer.Option("--tail", help="Only the last lines; -1 for all.")] = -1,
    since: Annotated[str, typer.Option("--since", help="Only what is newer: 30s, 5m, 1h.")] = "",
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Put the time before each line.")] = False,
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Print logs."""
    from hekla.cli.connection import run_connected
    from hekla.cli.durations import parse_duration

    query = {"container": container, "follow": "true" if follow else "", "previous": "true" if previous else ""}
    query["tailLines"] = str(tail) if tail >= 0 else ""
    query["sinceSeconds"] = str(max(1, int(parse_duration(since, "--since")))) if since else ""
    query["timestamps"] = "true" if timestamps else ""
    run_connected(kubeconfig, lambda connection: _print(connection, target, namespace, query))


async def _print(connection: "Connection", target: str, namespace: str, query: dict[str, str]) -> None:
    namespace = namespace or connection.default_namespace
    await print_logs(connection, await pods_of(connection, target, namespace), namespace, query, target)


async def print_logs(
    connection: "Connection", pods: list[str], namespace: str, query: dict[str, str], target: str
) -> None:
    """The logs of pods, each line with its pod's name if there are several."""
    import asyncio

    from hekla.cli.main import CommandError

    width = max(len(name) for name in pods) if len(pods) > 1 else 0
    if not width:
        await _one(connection, namespace, pods[0], query, "")
        return
    async with asyncio.TaskGroup() as group:
        told = [group.create_task(print_log_of_one(connection, namespace, name, query, width)) for name in pods]
    if not any(one.result() for one in told):
        raise CommandError(f"{target}: none of its {len(pods)} pods has a log; the reasons are above")


async def print_log_of_one(
    connection: "Connection", namespace: str, name: str, query: dict[str, str], width: int
) -> bool:
    """One pod among others: what cannot be had of it is told, and the others go on. Returns whether it could."""
    from hekla.cli.main import CommandError
    from hekla.kube.errors import ApiError

    try:
        await _one(connection, namespace, name, query, f"[{name.ljust(width)}] ")
    except ApiError as error:
        typer.echo(f"hekla: pod {name} has no log to show: {error.message}", err=True)
        return False
    except CommandError as unplaced:
        typer.echo(f"hekla: {unplaced}", err=True)
        return False
    return True


async def _one(connection: "Connection", namespace: str, name: str, query: dict[str, str], prefix: str) -> None:
    import sys
    from urllib.parse import urlencode

    from hekla.api.pods import Pod
    from hekla.cli.main import CommandError

    pod = await connection.client.request("GET", Pod.kind_info.path(namespace, name))
    if not pod["spec"].get("nodeName"):  # servers answer with an empty log, as if it had run and written nothing
        raise CommandError(
            f"pod {name} has no log yet, for it waits for a node; `hekla why pod/{name} -n {namespace}` says why"
        )
    if not query.get("container"):
        query = query | {"container": _container_of(pod)}
    filled = urlencode({key: value for key, value in query.items() if value})
    pieces = connection.client.stream(f"{Pod.kind_info.path(namespace, name, 'log')}?{filled}")
    if not prefix:
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        return
    async for line in _lines(pieces):
        typer.echo(prefix + line.decode(errors="replace"))


async def _lines(pieces: "AsyncIterator[bytes]") -> "AsyncIterator[bytes]":
    """Each line as it was written, empty ones too; one that is too long to wait for comes in parts."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def _container_of(pod: "Document") -> str:
    """Which container is meant where none is named: what the pod's annotation says, else the first, as kubectl takes them."""
    names = [one["name"] for one in pod["spec"]["containers"]]
    if len(names) < 2:
        return ""
    said = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER, "")
    if said in names:
        return str(said)
    typer.echo(f'Defaulted container "{names[0]}" out of: {", ".join(names)}', err=True)
    return str(names[0])


async def pods_of(connection: "Connection", target: str, namespace: str) -> list[str]:
    """The names of the pods that a target means: itself, or those that an object controls, at any depth."""
    from hekla.api.core import Pod
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.resources import discover

    kind_word, slash, name = target.partition("/")
    if not (name if slash else kind_word):
        raise CommandError(f'"{target}" names no pod', EXIT_USAGE)
    if not slash:
        return [target]
    kind = (await discover(connection)).find(kind_word).kind
    if kind.resource == "pods":
        return [name]
    document = await connection.client.get_document(kind, name, namespace)
    pods = (await connection.client.list_documents(Pod.kind_info, namespace)).items
    found = await _controlled(connection, document["metadata"]["uid"], pods, namespace)
    if not found:
        raise CommandError(f"{target} has no pods in namespace {namespace}")
    return sorted(found)


async def _controlled(connection: "Connection", uid: str, pods: "list[Document]", namespace: str) -> list[str]:
    from hekla.api.apps import ReplicaSet

    owners = {uid}
    for replica_set in (await connection.client.list_documents(ReplicaSet.kind_info, namespace)).items:
        if _owner_uids(replica_set) & owners:
            owners.add(replica_set["metadata"]["uid"])
    return [pod["metadata"]["name"] for pod in pods if _owner_uids(pod) & owners]


def _owner_uids(document: "Document") -> set[str]:
    return {owner["uid"] for owner in document["metadata"].get("ownerReferences", ())}
