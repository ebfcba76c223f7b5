"""Reads manifests: files, folders, standard input; YAML or JSON, many documents in one. Errors name file and line."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hekla.cli.main import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hekla.api.meta import Document

SUFFIXES = {".yaml", ".yml", ".json"}
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Manifest:
    """One document and where it was read."""

    source: str
    document: "Document"


def read_manifests(places: Sequence[str], *, recursive: bool = False) -> list[Manifest]:
    """Every document of every place, in order; Lists are opened."""
    if not places:
        raise CommandError("name a manifest with -f FILE (or - for standard input)", EXIT_USAGE)
    found = [manifest for place in places for manifest in _read_place(place, recursive=recursive)]
    if not found:
        raise CommandError(f"{', '.join(places)}: no objects found")
    return found


def _read_place(place: str, *, recursive: bool) -> Iterator[Manifest]:
    if place == "-":
        try:
            text = sys.stdin.read()
            text.encode()  # in a POSIX locale Python lets through what is no text
        except UnicodeError:
            raise CommandError("standard input: is not text in UTF-8") from None
        yield from parse_manifests(text, "standard input")
        return
    if place.startswith(("http://", "https://")):
        raise CommandError(
            f"{place}: is an address, and -f takes files; put `curl -fsSL '{place}' |` before the command, and -f - into it",
            EXIT_USAGE,
        )
    path = Path(place)
    if path.is_dir():
        try:
            files = sorted(path.rglob("*") if recursive else path.iterdir())
        except OSError as error:
            reason = (error.strerror or "cannot be read").lower()
            raise CommandError(f"{place}: {error.filename or 'a folder in it'} cannot be listed: {reason}") from None
        for file in files:
            if file.suffix in SUFFIXES and file.is_file():
                yield from _read_file(file)
        return
    yield from _read_file(path)


def _read_file(path: Path) -> Iterator[Manifest]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CommandError(f"{path}: larger than {MAX_BYTES // 1024 // 1024} MiB; split it")
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise CommandError(f"{path}: is not text in UTF-8") from None
    except OSError as error:
        raise CommandError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    yield from parse_manifests(text, str(path))


def parse_manifests(text: str, source: str) -> Iterator[Manifest]:
    """The documents of a text."""
    import yaml

    from hekla.lib import plain_yaml

    try:
        documents = plain_yaml.load_all(text)
    except yaml.YAMLError as error:
        raise CommandError(f"{source}: is no YAML: {_where(error, text)}") from None
    for number, document in enumerate(documents, 1):
        if document is not None:
            yield from _checked(document, f"{source}" + (f" (document {number})" if len(documents) > 1 else ""))


def _checked(document: Any, source: str) -> Iterator[Manifest]:
    if not isinstance(document, dict):
        raise CommandError(f"{source}: is a {type(document).__name__}, not an object with apiVersion and kind")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str) or not document[field]:
            raise CommandError(f"{source}: {field} is missing; every object has apiVersion, kind and metadata.name")
    if document["kind"].endswith("List") and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"], 1):
            yield from _checked(item, f"{source} item {number}")
        return
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise CommandError(f"{source}: {document['kind']} has no metadata.name")
    for field in ("name", "generateName", "namespace"):
        if not isinstance(said := metadata.get(field, ""), str | None):
            hint = "put it in quotes" if isinstance(said, int | float) else "a name is text"
            raise CommandError(
                f"{source}: metadata.{field} of {document['kind']} is {said!r}, which is no text; {hint}"
            )
    yield Manifest(source, document)


def _where(error: Any, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if not mark:
        return str(problem)
    tab = (
        "; a tab may not indent, spaces do"
        if "cannot start any token" in problem and _is_indented_by_a_tab(text, mark.line)
        else ""
    )
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{tab}"


def _is_indented_by_a_tab(text: str, line: int) -> bool:
    found = text.splitlines()[line] if line < text.count("\n") + 1 else ""
    return "\t" in found[: len(found) - len(found.lstrip())]
