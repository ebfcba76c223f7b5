"""Finds the object that a command names, and helps whoever misspelled it."""

from typing import TYPE_CHECKING

from hekla.cli.main import CommandError

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection
    from hekla.kube.client import Page


async def found(connection: "Connection", kind: "Kind", name: str, namespace: str = "") -> "Document":
    """The object; CommandError that suggests another name if there is none."""
    from hekla.kube.errors import NotFoundError

    try:
        return await connection.client.get_document(kind, name, namespace)
    except NotFoundError:
        raise CommandError(await _missing(connection, kind, name, namespace)) from None


async def listed(
    connection: "Connection", kind: "Kind", namespace: str = "", label_selector: str = ""
) -> "Page[Document]":
    """All objects of a kind; CommandError if the server does not have it."""
    from hekla.kube.errors import NotFoundError

    try:
        return await connection.client.list_documents(kind, namespace, label_selector=label_selector)
    except NotFoundError:
        message = f"the server has no {kind.resource}; install their definition with `kubectl apply -k deploy/`"
        raise CommandError(message) from None


async def _missing(connection: "Connection", kind: "Kind", name: str, namespace: str) -> str:
    from hekla.cli.names import nearest

    names = [one["metadata"]["name"] for one in (await listed(connection, kind, namespace)).items]
    near = nearest(name, names)
    where = f' in namespace "{namespace}"' if namespace else ""
    lists = f"`hekla {kind.singular} list{f' -n {namespace}' if namespace else ''}` shows those that do"
    hint = f'did you mean "{near}"?' if near else lists
    return f'{kind.singular} "{name}" does not exist{where}; {hint}'


def demand_name(name: str, kind_word: str, option: str) -> None:
    """Refuse an empty name."""
    from hekla.cli.main import EXIT_USAGE

    if not name:
        raise CommandError(f"no {kind_word} is named; say which with {option} NAME", EXIT_USAGE)
