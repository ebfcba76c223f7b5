"""The pods of jobs and queues, as `vcctl pod list` shows them: the server's own cells in Volcano's columns."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from hekla.cli.main import CommandError
from hekla.cli.volcano.columns import PeerColumn, name_of, namespace_of, peer_table

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

JOB_LABEL, QUEUE_LABEL = "volcano.sh/job-name", "volcano.sh/queue-name"
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"


def _cell(title: str) -> Callable[["Document"], str]:
    return lambda pod: str(pod["cells"].get(title, ""))


_READERS = (("Ready", "Ready"), ("Status", "Status"), ("Restart", "Restarts"), ("Age", "Age"))
PEER_COLUMNS = (
    PeerColumn("Name", name_of, gap=8, title_gap=2),
    *(PeerColumn(title, _cell(cell), gap=8, title_gap=2) for title, cell in _READERS),
)
PEER_NAMESPACE = PeerColumn("Namespace", namespace_of, gap=8, title_gap=2)


async def peer_pod_list(connection: "Connection", namespace: str, *, queue: str, job: str) -> str:
    """Pods of a job, of a queue, or of all jobs; an empty namespace means all."""
    selector = f"{JOB_LABEL}={job}" if job else "" if queue else JOB_LABEL
    pods = await _pods(connection, namespace, selector)
    if job and queue and any(_label(one, QUEUE_LABEL) not in ("", queue) for one in pods):
        other = next(_label(one, QUEUE_LABEL) for one in pods if _label(one, QUEUE_LABEL) not in ("", queue))
        raise CommandError(f'job "{job}" is in queue "{other}", not in "{queue}"; leave one of --job and --queue out')
    if queue and not job:
        pods = [one for one in pods if queue in (_label(one, QUEUE_LABEL), _annotation(one, QUEUE_ANNOTATION))]
    columns = PEER_COLUMNS if namespace else (PEER_NAMESPACE, *PEER_COLUMNS)
    return peer_table(columns, sorted(pods, key=_order)) if pods else "No resources found"


async def _pods(connection: "Connection", namespace: str, selector: str) -> "list[Document]":
    """Every pod's metadata with its cells by title: who counts restarts and words states is the server."""
    from hekla.api.core import Pod

    query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
    table = await connection.table(Pod.kind_info.path(namespace) + query)
    titles = [one["name"] for one in table["columnDefinitions"]]
    return [
        {"metadata": row["object"]["metadata"], "cells": dict(zip(titles, row["cells"], strict=True))}
        for row in table["rows"] or ()
    ]


def _order(pod: "Document") -> tuple[str, str]:
    return namespace_of(pod), name_of(pod)


def _label(pod: "Document", name: str) -> str:
    return _text(pod["metadata"].get("labels"), name)


def _annotation(pod: "Document", name: str) -> str:
    return _text(pod["metadata"].get("annotations"), name)


def _text(pairs: Any, name: str) -> str:
    return str((pairs or {}).get(name, ""))
