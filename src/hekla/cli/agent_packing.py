"""`hekla agent pack` and `hekla agent publish`: from a directory with a program to an agent whose sessions run it.

directory --pack--> NAME-VERSION.agent.tar.gz --publish--> AgentRuntime --a request--> session
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli.options import Kubeconfig, Namespace

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.agent_artefact import Agent
    from hekla.cli.agent_objects import Publication
    from hekla.cli.connection import Connection

FIELD_MANAGER = "hekla-agent-publish"


def pack(
    workspace: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="With the agent's program.", show_default=False)] = Path(),
    agent_name: Annotated[str, typer.Option("--agent-name", help="Its name; as its directory is called if empty.")] = "",
    language: Annotated[str, typer.Option("--language", help="python or java.")] = "",
    entrypoint: Annotated[str, typer.Option("--entrypoint", help="What starts it; `python main.py` if there is a main.py.")] = "",
    port: Annotated[int, typer.Option("--port", help="Where it listens; 8080 if 0. It is told as $PORT.")] = 0,
    version: Annotated[str, typer.Option("--version", help="Its version.")] = "",
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    requirements: Annotated[bool, typer.Option("--requirements/--no-requirements", help="Let pip fetch what its requirements file names, and pack it, too.")] = True,
    output: Annotated[str, typer.Option("-o", "--output", help="The file to write; NAME-VERSION.agent.tar.gz if empty.", show_default=False)] = "",
) -> None:  # fmt: skip
    """Pack a directory with an agent into one file. Its agent_metadata.yaml, if it has one, says what options do not.

    Examples:

      hekla agent pack examples/agents/echo

      hekla agent pack mine --entrypoint 'python -m mine.server' --port 9000 --version 1.2.0
    """
    from hekla.cli.agent_artefact import agent_of, digest
    from hekla.cli.agent_artefact import pack as packed
    from hekla.cli.main import CommandError

    said = {
        "agent_name": agent_name, "language": language, "entrypoint": entrypoint, "port": port, "version": version,
        "description": description,
    }  # fmt: skip
    agent = agent_of(workspace, said)
    with _packages(workspace, agent, wanted=requirements) as packages:
        data = packed(workspace, agent, packages)
    target = Path(output or f"{agent.agent_name}-{agent.version}.agent.tar.gz")
    try:
        target.write_bytes(data)
    except OSError as error:
        raise CommandError(f"{target}: {(error.strerror or str(error)).lower()}") from None
    typer.echo(f"{target}: {len(data) / 1024:.1f} KiB, sha256 {digest(data)[:16]}")


@contextmanager
def _packages(workspace: Path, agent: "Agent", *, wanted: bool) -> Iterator[Path | None]:
    """What pip makes of the requirements, for the length of a block."""
    from hekla.cli.main import CommandError

    if not agent.requirements_file or not wanted or agent.language != "python":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="hekla-pack-") as place:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--target",
            place,
            "-r",
            agent.requirements_file,
        ]
        done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or f"pip ended with {done.returncode}").splitlines()[-1]
            raise CommandError(
                f"{workspace / agent.requirements_file} cannot be fetched: {last}; mend it, or pack with --no-requirements"
            )
        yield Path(place)


def publish(
    artefact: Annotated[Path, typer.Argument(metavar="FILE", help="What `hekla agent pack` wrote.", show_default=False)],
    namespace: Namespace = "",
    image_url: Annotated[str, typer.Option("--image-url", help="An image with the agent inside, in place of its packed code.")] = "",
    base_image: Annotated[str, typer.Option("--base-image", help="What its code runs in; Python as nodes bring it if empty.")] = "",
    session_timeout: Annotated[str, typer.Option("--session-timeout", help="How long a session may be idle.")] = "15m",
    max_session_duration: Annotated[str, typer.Option("--max-session-duration", help="How long a session may live.")] = "8h",
    egress: Annotated[str, typer.Option("--egress", help="Hosts that it may reach, HOST[:PORT] with commas; nobody if empty.")] = "",
    queue: Annotated[str, typer.Option("--queue", help="The queue that its sessions are counted in.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the objects and store nothing.")] = False,
    kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Make an AgentRuntime of a packed agent, or bring it up to date; sessions of an earlier version go on with theirs.

    Examples:

      hekla agent publish echo-0.0.1.agent.tar.gz

      hekla agent publish mine-1.2.0.agent.tar.gz -n research --egress api.example.com:443 --session-timeout 1h
    """
    from hekla.cli.agent_artefact import read
    from hekla.cli.agent_objects import Publication, code_map, runtime
    from hekla.cli.connection import run_connected
    from hekla.cli.output import print_document

    agent, data = read(artefact)
    how = Publication(
        namespace=namespace or "default", image=image_url, base_image=base_image, session_timeout=session_timeout,
        max_session_duration=max_session_duration, egress=egress, queue=queue,
    )  # fmt: skip
    made, code = runtime(agent, data, how), None if image_url else code_map(agent, data, how)
    if dry_run:
        for document in (one for one in (code, made) if one is not None):
            typer.echo("---")
            print_document(document, "yaml")
        return
    run_connected(kubeconfig, lambda connection: _store(connection, how, made, code))
    path = f"/v1/namespaces/{how.namespace}/agent-runtimes/{agent.agent_name}/invocations/"
    typer.echo(
        f"agent {agent.agent_name} {agent.version} is published; the gateway opens a session of it for a request to {path}"
    )


async def _store(connection: "Connection", how: "Publication", made: "Document", code: "Document | None") -> None:
    """The code first: no session may start without it. Then whose it is; and what is too old goes."""
    from hekla.api.agents import AgentRuntime

    maps, path = f"/api/v1/namespaces/{how.namespace}/configmaps", AgentRuntime.kind_info.path(how.namespace)
    before = await _code_in_use(connection, f"{path}/{made['metadata']['name']}")
    if code is not None:
        await _apply(connection, maps, code)
    stored = await _apply(connection, path, made)
    meta, current = stored["metadata"], ""
    if code is not None:
        owner = {
            "apiVersion": made["apiVersion"], "kind": made["kind"], "name": meta["name"], "uid": meta["uid"],
            "controller": True,
        }  # fmt: skip
        current = code["metadata"]["name"]
        await _apply(connection, maps, {**code, "metadata": {**code["metadata"], "ownerReferences": [owner]}})
    await _prune(connection, how.namespace, meta["name"], {current, before})


async def _code_in_use(connection: "Connection", path: str) -> str:
    """The ConfigMap of the version that is published so far; empty if there is none."""
    from hekla.kube.errors import NotFoundError

    try:
        there = await connection.client.request("GET", path)
    except NotFoundError:
        return ""
    volumes = there["spec"]["podTemplate"].get("spec", {}).get("volumes") or ()
    return next((f"{one['configMap'].get('name')}" for one in volumes if one.get("configMap")), "")


async def _apply(connection: "Connection", path: str, document: "Document") -> "Document":
    from hekla.kube.client import PatchType

    query = f"?fieldManager={FIELD_MANAGER}&force=true"
    target = f"{path}/{document['metadata']['name']}{query}"
    stored: Document = await connection.client.request("PATCH", target, document, content_type=PatchType.APPLY)
    return stored


async def _prune(connection: "Connection", namespace: str, agent: str, kept: set[str]) -> None:
    """Code of versions before the last one: that one's sessions may still start a container anew."""
    from hekla.api.core import ConfigMap
    from hekla.cli.agent_objects import OF_AGENT

    for one in (await connection.client.list(ConfigMap, namespace, label_selector=f"{OF_AGENT}={agent}")).items:
        if one.metadata.name not in kept:
            await connection.client.delete(ConfigMap, one.metadata.name, namespace)
