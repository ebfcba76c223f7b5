"""What the server has, and what a user means by `job`, `vcjob/train` or `pods,queues`.

Names are looked up in the server's discovery: kind, plural, singular and short names, with `.group` to be exact.
Where several groups have a word, the core group wins, then the order in which the server lists its groups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hekla.cli.main import EXIT_USAGE, CommandError
from hekla.cli.names import nearest

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


@dataclass(frozen=True)
class Served:
    """One resource that a server offers."""

    kind: "Kind"
    subresources: frozenset[str]
    verbs: frozenset[str]


class Catalogue:
    """The resources of one server."""

    def __init__(self, served: Sequence[Served], silent: Sequence[str] = ()) -> None:
        """What is offered, and the versions of which nothing is known because their own API server does not answer."""
        self.served, self.silent = served, silent

    def find(self, word: str) -> Served:
        """What `word` means; CommandError with the nearest words if nothing does."""
        asked = word.lower()
        for one in self.served:
            if asked in _words(one.kind):
                return one
        raise CommandError(f'the server doesn\'t have a resource type "{word}"{self._nearest(asked)}', EXIT_USAGE)

    def find_all(self, word: str) -> list[Served]:
        """What `word` means, or all that belongs to the category of that name, each in one version."""
        members: dict[str, Served] = {}
        for one in self.served:
            if word.lower() in one.kind.categories and "list" in one.verbs:
                members.setdefault(one.kind.resource, one)
        is_type = any(word.lower() in _words(one.kind) for one in self.served)
        return [self.find(word)] if is_type or not members else list(members.values())

    def of_document(self, document: "Document", source: str) -> Served:
        """What a manifest's apiVersion and kind mean."""
        version, kind = document.get("apiVersion", ""), document.get("kind", "")
        for one in self.served:
            if one.kind.api_version == version and one.kind.kind == kind:
                return one
        raise CommandError(
            f'{source}: no matches for kind "{kind}" in version "{version}"; {self._meant(version, kind)}'
        )

    def _meant(self, version: str, kind: str) -> str:
        """The versions that have a kind of that name, or the nearest kind of that version."""
        versions = sorted({one.kind.api_version for one in self.served if one.kind.kind == kind})
        if versions:
            return f"it is in {' and '.join(versions)}"
        near = nearest(kind, {one.kind.kind for one in self.served if one.kind.api_version == version})
        return f'did you mean "{near}"?' if near else "is its CRD installed?"

    def _nearest(self, asked: str) -> str:
        near = nearest(asked, {word for one in self.served for word in _words(one.kind)})
        meant = f'; did you mean "{near}"?' if near else "; `hekla api-resources` lists them"
        return meant + (f" (nobody answers for {', '.join(self.silent)})" if self.silent else "")


async def discover(connection: "Connection") -> Catalogue:
    """Ask the server what it has: two requests."""
    import json

    from hekla.kube.answers import error_from_response
    from hekla.wire.messages import Request

    found, silent = list[Served](), list[str]()
    for path in ("/api", "/apis"):
        answer = await connection.transport.send(Request("GET", path, {"accept": AGGREGATED}))
        assert isinstance(answer.body, bytes)
        if answer.status >= 400:
            raise error_from_response(answer.status, answer.body, answer.headers)
        groups = json.loads(answer.body)
        found += _served(groups)
        silent += _silent(groups)
    return Catalogue(found, silent)


def _served(discovery: "Document") -> Iterator[Served]:
    from hekla.api.meta import Kind, Scope

    for group in discovery.get("items", ()):
        name = group["metadata"].get("name", "")
        for version in group["versions"]:
            for entry in version.get("resources") or ():
                kind = Kind(
                    group=name,
                    version=version["version"],
                    kind=entry["responseKind"]["kind"],
                    plural=entry["resource"],
                    singular=entry.get("singularResource") or entry["responseKind"]["kind"].lower(),
                    scope=Scope(entry["scope"]),
                    short_names=tuple(entry.get("shortNames", ())),
                    categories=tuple(entry.get("categories", ())),
                )
                below: list[dict[str, Any]] = entry.get("subresources", [])
                yield Served(kind, frozenset(one["subresource"] for one in below), frozenset(entry["verbs"]))


def _silent(discovery: "Document") -> Iterator[str]:
    """Versions of which a server knows nothing because the API server behind it (an APIService) is away."""
    for group in discovery.get("items", ()):
        for version in group["versions"]:
            if version.get("freshness") == "Stale" and not version.get("resources"):
                yield f"{group['metadata'].get('name', '')}/{version['version']}"


def _words(kind: "Kind") -> frozenset[str]:
    names = {kind.plural, kind.singular, kind.kind.lower(), *kind.short_names}
    exact = (
        {f"{name}.{kind.group}" for name in (kind.plural, kind.singular, kind.kind.lower())} if kind.group else set()
    )
    versioned = {f"{kind.plural}.{kind.version}.{kind.group}"} if kind.group else set()
    return frozenset(names | exact | versioned)


@dataclass(frozen=True)
class Selection:
    """What the words of a command name: a type, and names or none for all."""

    served: Served
    names: tuple[str, ...] = ()


def parse_selection(words: Sequence[str], catalogue: Catalogue) -> list[Selection]:
    """`pods`, `pods a b`, `pod/a job/b`, `pods,queues` as selections."""
    if not words:
        raise CommandError("name a resource type, such as `pods` or `vcjob/train`", EXIT_USAGE)
    if not all(words):  # an unset variable in a script: without a name, a path is that of all objects
        raise CommandError("a name is empty: a variable that is not set, perhaps", EXIT_USAGE)
    for word in words:
        if (name := word.rpartition("/")[2]) in (".", ".."):  # in a path they are directions
            raise CommandError(f'"{name}" is the name of nothing', EXIT_USAGE)
    if any("/" in word for word in words):
        return [_one(word, catalogue) for word in words]
    types = [served for word in words[0].split(",") if word for served in catalogue.find_all(word)]
    if len(types) > 1 and len(words) > 1:
        raise CommandError("several types cannot be given with names; use TYPE/NAME", EXIT_USAGE)
    return [Selection(served, tuple(words[1:])) for served in types]


def _one(word: str, catalogue: Catalogue) -> Selection:
    kind, slash, name = word.partition("/")
    if not slash or not name or "/" in name:
        raise CommandError(
            f'"{word}" is not TYPE/NAME, and types with a slash cannot be mixed with those without', EXIT_USAGE
        )
    return Selection(catalogue.find(kind), (name,))
