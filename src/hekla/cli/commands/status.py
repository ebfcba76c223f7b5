"""Say whether a platform runs, where, and how its nodes, pods, jobs and queues are; or how those of another cluster are.

Exit code 0 if it runs and answers, 3 if not.

Examples:

  hekla status

  hekla status --data-dir /tmp/h -o json

  hekla status --kubeconfig ~/.kube/config
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hekla.cli.options import Kubeconfig, Output

if TYPE_CHECKING:
    from hekla.api.meta import Document, Resource
    from hekla.cli.connection import Connection

Kept = TypeVar("Kept", bound="Resource")


def run(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The platform's data directory.", show_default=False)
    ] = None,
    kubeconfig: Kubeconfig = "",
    output: Output = "",
) -> None:
    """Say how the platform is."""
    from hekla.cli.connection import run_connected
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.output import print_document

    if data_dir and kubeconfig:
        raise CommandError("--data-dir and --kubeconfig each name a platform; give one of them", EXIT_USAGE)
    who, nodes, path = ({}, 0, kubeconfig) if kubeconfig else _running(data_dir)
    facts = who | run_connected(path, _facts)
    facts["nodes"]["joining"] = max(0, nodes - facts["nodes"]["all"])
    if output:
        print_document(facts, output)
    else:
        typer.echo(_text(facts))


def _running(data_dir: Path | None) -> tuple[dict[str, Any], int, str]:
    """What is known of the platform's process, how many nodes it is to have, and how to reach it."""
    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir
    from hekla.cli.main import EXIT_UNREACHABLE, CommandError
    from hekla.cli.platform_errors import in_words

    directory = DataDirectory((data_dir or default_data_dir()).absolute())
    with in_words():
        running = directory.running()
    if running is None:
        raise CommandError(f"{directory.nobody_runs()}; start one with `hekla up --detach`", EXIT_UNREACHABLE)
    who = {"url": running.url, "pid": running.pid, "version": running.version, "dataDir": str(directory.root)}
    if directory.router_url.exists():
        who["router"] = directory.router_url.read_text().strip()
        who["routerKeys"] = str(directory.router_keys)
    if directory.agents_url.exists():
        who["agents"] = directory.agents_url.read_text().strip()
        who["agentsKey"] = str(directory.agents_key)
    return who, running.nodes, str(directory.kubeconfig)


async def _facts(connection: "Connection") -> dict[str, Any]:
    from hekla.api.core import Node, Pod
    from hekla.api.volcano import Job, Queue

    nodes = (await connection.client.list(Node)).items
    ready = sum(any(c.type == "Ready" and c.status == "True" for c in node.status.conditions) for node in nodes)
    pods = (await connection.client.list(Pod)).items
    version: Document = await connection.client.request("GET", "/version")
    return {
        "kubernetes": version["gitVersion"],
        "nodes": {"ready": ready, "all": len(nodes)},
        "pods": _counted(pod.status.phase or "Pending" for pod in pods),
        "jobs": _counted(job.status.state.phase or "Pending" for job in await _all_of(connection, Job)),
        "queues": _counted(queue.status.state or "Open" for queue in await _all_of(connection, Queue)),
    }


async def _all_of(connection: "Connection", kind: type[Kept]) -> list[Kept]:
    """Every object of a kind; none where the cluster does not have the kind."""
    from hekla.kube.errors import NotFoundError

    try:
        return list((await connection.client.list(kind)).items)
    except NotFoundError:
        return []


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _text(facts: dict[str, Any]) -> str:
    told = {
        name: ", ".join(f"{count} {word}" for word, count in facts[name].items()) or "none"
        for name in ("pods", "jobs", "queues")
    }
    return (
        f"{_who(facts)}\nnodes:  {_nodes(facts['nodes'])}\n"
        f"pods:   {told['pods']}\njobs:   {told['jobs']}\nqueues: {told['queues']}"
        + (f"\nmodels: {facts['router']}/v1 (keys in {facts['routerKeys']})" if "router" in facts else "")
        + (f"\nsandboxes: {facts['agents']} (keys in {facts['agentsKey']})" if "agents" in facts else "")
    )


def _nodes(counted: dict[str, int]) -> str:
    joining = f", {counted['joining']} still joining" if counted["joining"] else ""
    return f"{counted['ready']} of {counted['all'] + counted['joining']} ready{joining}"


def _who(facts: dict[str, Any]) -> str:
    if "pid" not in facts:
        return f"a Kubernetes {facts['kubernetes']} API server answers"
    return f"hekla {facts['version']} runs at {facts['url']} (process {facts['pid']}, data in {facts['dataDir']})"
