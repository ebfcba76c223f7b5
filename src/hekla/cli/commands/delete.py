"""Delete objects, and wait until they are gone.

Examples:

  hekla delete vcjob train

  hekla delete -f job.yaml

  hekla delete pods -l app=web --wait=false

  hekla delete deployment web --cascade=orphan
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli import completion
from hekla.cli.options import Files, Kubeconfig, Namespace, Recursive, Selector

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection
    from hekla.kube.errors import ApiError

TELL_AFTER_S = 5.0
"""How long an object may take to go before it is said what keeps it."""

CASCADE = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TYPE[/NAME] [NAME...]]", show_default=False, autocompletion=completion.types_and_names
        ),
    ] = None,
    filename: Files = [],  # noqa: B006 - typer copies it
    namespace: Namespace = "",
    selector: Selector = "",
    every: Annotated[bool, typer.Option("--all", help="Every object of the type in the namespace.")] = False,
    recursive: Recursive = False,
    cascade: Annotated[str, typer.Option("--cascade", help="background, foreground or orphan.")] = "background",
    grace: Annotated[
        int, typer.Option("--grace-period", help="Seconds a pod has to end; -1 is the pod's own wish.")
    ] = -1,
    ignore_not_found: Annotated[bool, typer.Option("--ignore-not-found", help="What is gone already is fine.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the objects are gone.")] = True,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Delete objects."""
    from hekla.cli.connection import refusal_text, run_connected
    from hekla.cli.main import EXIT_USAGE, CommandError

    if cascade not in CASCADE:
        raise CommandError(f'--cascade is "{cascade}"; use background, foreground or orphan', EXIT_USAGE)
    if bool(words) == bool(filename):
        raise CommandError(
            "say what to delete: TYPE NAME, TYPE/NAME, TYPE -l LABELS, TYPE --all, or -f FILE", EXIT_USAGE
        )
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": CASCADE[cascade]}
    if grace >= 0:
        options["gracePeriodSeconds"] = grace
    deletion = Deletion(namespace, selector, every, options, ignore_not_found)

    async def work(connection: "Connection") -> None:
        gone, refused = await deletion.send(connection, words or [], filename, recursive=recursive)
        if wait:
            await deletion.wait(connection, gone)
        for one in refused[:-1]:
            typer.echo(f"hekla: {refusal_text(one)}", err=True)
        if refused:
            raise refused[-1]

    run_connected(kubeconfig, work)


class Deletion:
    """Asks for deletions and waits for their end."""

    def __init__(self, namespace: str, selector: str, every: bool, options: dict[str, Any], lenient: bool) -> None:
        self.namespace, self.selector, self.every = namespace, selector, every
        self.options, self.lenient = options, lenient

    async def send(
        self, connection: "Connection", words: list[str], files: list[str], *, recursive: bool
    ) -> "tuple[dict[str, str], list[ApiError]]":
        """Ask for every deletion; returns path to uid of what is leaving, and what could not be deleted."""
        from hekla.kube.errors import ApiError, NotFoundError

        leaving: dict[str, str] = {}
        refused: list[ApiError] = []
        for path, label in await self._targets(connection, words, files, recursive=recursive):
            try:
                answer = await connection.client.request("DELETE", path, self.options)
            except ApiError as error:
                if not (self.lenient and isinstance(error, NotFoundError)):
                    refused.append(error)
                continue
            uid = answer.get("metadata", {}).get("uid") or (answer.get("details") or {}).get("uid", "")
            leaving[path] = uid
            typer.echo(f"{label} deleted")
        return leaving, refused

    async def wait(self, connection: "Connection", leaving: dict[str, str]) -> None:
        """Return when each is gone, or replaced by another of the same name; what keeps one for long is told once."""
        from hekla.kube.errors import NotFoundError

        for path, uid in leaving.items():
            pause_s, waited_s = 0.05, 0.0
            while True:
                try:
                    found = await connection.client.request("GET", path)
                except NotFoundError:
                    break
                if uid and found["metadata"]["uid"] != uid:
                    break
                if waited_s <= TELL_AFTER_S < waited_s + pause_s:
                    await _tell_what_keeps(connection, found)
                waited_s += pause_s
                await pause(pause_s)
                pause_s = min(pause_s * 1.5, 1.0)

    async def _targets(
        self, connection: "Connection", words: list[str], files: list[str], *, recursive: bool
    ) -> list[tuple[str, str]]:
        from hekla.cli.main import EXIT_USAGE, CommandError
        from hekla.cli.manifests import read_manifests
        from hekla.cli.resources import discover, parse_selection

        catalogue = await discover(connection)
        namespace = self.namespace or connection.default_namespace
        found = []
        # what stands last was made last, and leans on what stands before it: a child queue on its parent
        for manifest in reversed(read_manifests(files, recursive=recursive) if files else []):
            kind = catalogue.of_document(manifest.document, manifest.source).kind
            metadata = manifest.document["metadata"]
            if not metadata.get("name"):
                raise CommandError(f"{manifest.source}: {kind.kind} has no metadata.name, only a generateName")
            found.append(
                (kind.path(metadata.get("namespace") or namespace, metadata["name"]), _label(kind, metadata["name"]))
            )
        for selection in parse_selection(words, catalogue) if words else ():
            kind, names = selection.served.kind, selection.names
            if not names:
                if not (self.selector or self.every):
                    raise CommandError(f"name the {kind.plural}, or select them with -l LABELS or --all", EXIT_USAGE)
                page = await connection.client.list_documents(kind, namespace, label_selector=self.selector)
                names = tuple(one["metadata"]["name"] for one in page.items)
            found += [(kind.path(namespace, name), _label(kind, name)) for name in names]
        return found


async def pause(pause_s: float) -> None:
    """Before the next look."""
    import asyncio

    await asyncio.sleep(pause_s)


async def _tell_what_keeps(connection: "Connection", document: "Document") -> None:
    from datetime import UTC, datetime

    from hekla.cli.terminal import harmless
    from hekla.cli.what_keeps import what_keeps

    if keeps := await what_keeps(connection, document, datetime.now(UTC)):
        typer.echo(
            harmless(f'hekla: {document["kind"]} "{document["metadata"]["name"]}" is still there: {keeps}'), err=True
        )


def _label(kind: Any, name: str) -> str:
    return f'{kind.singular}{"." + kind.group if kind.group else ""} "{name}"'
