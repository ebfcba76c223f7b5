"""Wait until objects are as asked, or the time is up (exit code 124).

Examples:

  hekla wait pod/web --for=condition=Ready

  hekla wait vcjob/train --for=phase=Completed --timeout=120s

  hekla wait vcjob/train --for=jsonpath='{.status.succeeded}'=4

  hekla wait pod/web --for=delete
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace, Selector

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection


def run(
    words: Annotated[
        list[str], typer.Argument(metavar="TYPE/NAME...", show_default=False, autocompletion=completion.types_and_names)
    ],
    condition: Annotated[
        str, typer.Option("--for", help="condition=TYPE[=STATUS], phase=PHASE, jsonpath={PATH}[=VALUE], delete.")
    ],
    timeout: Annotated[str, typer.Option("--timeout", help="How long: 30s, 5m, 1h.")] = "30s",
    namespace: Namespace = "",
    selector: Selector = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Wait for objects."""
    import asyncio

    from hekla.cli.connection import run_connected
    from hekla.cli.durations import parse_duration
    from hekla.cli.main import EXIT_TIMEOUT, CommandError
    from hekla.cli.names import hint

    limit_s = parse_duration(timeout, "--timeout")
    wanted = parse_condition(condition)
    latest = Latest()

    async def work(connection: "Connection") -> None:
        try:
            async with asyncio.timeout(limit_s):
                await _wait_all(connection, words, namespace, selector, wanted, latest)
        except TimeoutError:
            instead = f"; {latest.name} {what_is_there(condition, latest.document)}" if latest.name else ""
            if latest.name and latest.document is None:
                instead += await hint(connection, latest.collection, latest.name.rpartition("/")[2])
            raise CommandError(
                f"timed out after {timeout} waiting for {condition} on {' '.join(words)}{instead}", EXIT_TIMEOUT
            ) from None

    run_connected(kubeconfig, work)


Wanted = Callable[["Document | None"], bool]


LONGEST_VALUE = 200
"""Characters of a value that a refusal shows: a jsonpath may lead to a whole object."""


@dataclass
class Latest:
    """What was last seen of the object that is waited for; without a name, none was looked at yet."""

    name: str = ""
    collection: str = ""
    """The URL that it would be under."""
    document: "Document | None" = None

    def noting(self, name: str, collection: str, wanted: Wanted) -> Wanted:
        """The same test, which notes what it was asked about; what the object before it was is forgotten."""
        self.name, self.collection, self.document = "", collection, None

        def is_wanted(document: "Document | None") -> bool:
            self.name, self.document = name, document
            return wanted(document)

        return is_wanted


def parse_condition(text: str) -> Wanted:
    """The test that `--for` asks for, of an object or of its absence."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    what, _, value = text.partition("=")
    if text == "delete":
        return lambda document: document is None
    if what == "condition" and value:
        kind, _, status = value.partition("=")
        return lambda document: _has_condition(document, kind, status or "True")
    if what == "phase" and value:
        return lambda document: _is_in_phase(document, value)
    if what == "jsonpath" and "}=" in value:
        path, _, expected = value.rpartition("=")
        return lambda document: _lookup(document, path) == expected.strip("'\"")
    if what == "jsonpath" and "}" in value:
        return lambda document: bool(_lookup(document, value.strip("'\"")))
    raise CommandError(
        f'--for is "{text}"; use condition=TYPE, phase=PHASE, jsonpath={{PATH}}[=VALUE] or delete', EXIT_USAGE
    )


def what_is_there(condition: str, document: "Document | None") -> str:
    """What an object has instead of what `--for` asks for: a mistyped phase is seen beside the true one."""
    if document is None:
        return "does not exist"
    what, _, value = condition.partition("=")
    if what == "phase":
        return f'has the phase "{phase}"' if (phase := _phase(document)) else "has no phase yet"
    if what == "condition":
        return _condition_there(document, value.partition("=")[0])
    if what == "jsonpath":
        path = (value.rpartition("=")[0] if "}=" in value else value).strip("'\"")
        return f'has "{_lookup(document, path)[:LONGEST_VALUE]}" at {path}'
    return "is still there"


def _condition_there(document: "Document", kind: str) -> str:
    found = {str(c["type"]): c for c in (document.get("status") or {}).get("conditions") or [] if c.get("type")}
    for name, one in found.items():
        if name.lower() == kind.lower():
            why = ": ".join(str(one[key]) for key in ("reason", "message") if one.get(key))
            return f'has {name}="{one.get("status")}"' + (f" ({why[:LONGEST_VALUE]})" if why else "")
    if found:
        return f"has no condition {kind}, but {', '.join(sorted(found))}"
    # a Volcano Job's conditions are the phases it has had, without a type
    phase = _phase(document)
    return f"has no condition {kind}" + (f', but the phase "{phase}": ask --for=phase=PHASE' if phase else "")


async def _wait_all(
    connection: "Connection", words: list[str], namespace: str, selector: str, wanted: Wanted, latest: Latest
) -> None:
    from hekla.cli.resources import discover, parse_selection

    namespace = namespace or connection.default_namespace
    for selection in parse_selection(words, await discover(connection)):
        kind, names = selection.served.kind, selection.names
        if not names:
            page = await connection.client.list_documents(kind, namespace, label_selector=selector)
            names = tuple(one["metadata"]["name"] for one in page.items)
        for name in names:
            shown = f"{kind.singular}{'.' + kind.group if kind.group else ''}/{name}"
            where = namespace if kind.is_namespaced else ""
            await _wait_one(connection, kind, name, where, latest.noting(shown, kind.path(where), wanted))
            typer.echo(f"{shown} condition met")


async def _wait_one(connection: "Connection", kind: "Kind", name: str, namespace: str, wanted: Wanted) -> None:
    """List, then watch from there: nothing that happens in between is missed. A watch that ends is begun anew."""
    fields = f"metadata.name={name}"
    while True:
        page = await connection.client.list_documents(kind, namespace, field_selector=fields)
        if wanted(page.items[0] if page.items else None):
            return
        events = connection.client.watch_documents(
            kind, namespace, resource_version=page.resource_version, field_selector=fields
        )
        async for event in events:
            if event.type != "BOOKMARK" and wanted(None if event.type == "DELETED" else event.object):
                return


def _is_in_phase(document: "Document | None", wanted: str) -> bool:
    """Whether it is; CommandError if it never will be, as the phase that it has is its last."""
    from hekla.cli.main import CommandError
    from hekla.workloads.job_lifecycle import FINISHED

    phase, group = _phase(document), str((document or {}).get("apiVersion", "")).partition("/")[0]
    lasts: dict[tuple[str, str], tuple[str, AbstractSet[str]]] = {
        ("Job", "batch.volcano.sh"): ("vcjob", FINISHED), ("Pod", "v1"): ("pod", {"Succeeded", "Failed"}),
    }  # fmt: skip
    word, last = lasts.get((str((document or {}).get("kind", "")), group), ("", frozenset()))
    if phase != wanted and phase in last and document is not None:
        name, namespace = document["metadata"]["name"], document["metadata"].get("namespace", "default")
        raise CommandError(
            f'{word} "{name}" is {phase} and will not be {wanted}; what it wrote: hekla logs {word}/{name} -n {namespace}'
        )
    return phase == wanted


def _has_condition(document: "Document | None", kind: str, status: str) -> bool:
    found = ((document or {}).get("status") or {}).get("conditions") or []
    return any(
        str(c.get("type")).lower() == kind.lower() and str(c.get("status")).lower() == status.lower() for c in found
    )


def _phase(document: "Document | None") -> str:
    status = (document or {}).get("status") or {}
    state = status.get("state")
    # a Volcano Job keeps its phase in status.state.phase, a Queue in status.state
    return str((state.get("phase") if isinstance(state, dict) else state or status.get("phase")) or "")


def _lookup(document: "Document | None", path: str) -> str:
    from hekla.cli.jsonpath import path_of

    return path_of(path).render(document or {})
