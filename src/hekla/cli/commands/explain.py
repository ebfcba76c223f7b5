"""Say what a kind and its fields are for, from the server's own schema.

Examples:

  hekla explain vcjob

  hekla explain vcjob.spec.tasks

  hekla explain pod.spec.containers.resources

  hekla explain vcjob --recursive
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli.options import Kubeconfig

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection
    from hekla.cli.schemas import Schemas

WIDTH = 100


def run(
    what: Annotated[str, typer.Argument(metavar="TYPE[.FIELD...]", show_default=False)],
    recursive: Annotated[bool, typer.Option("--recursive", help="Every field below, with its type alone.")] = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Explain a kind or a field."""
    from hekla.cli.connection import run_connected

    run_connected(kubeconfig, lambda connection: _explain(connection, what, recursive=recursive))


async def _explain(connection: "Connection", what: str, *, recursive: bool) -> None:
    from hekla.cli.resources import discover
    from hekla.cli.schemas import schemas_of

    word, *fields = what.split(".")
    kind = (await discover(connection)).find(word).kind
    typer.echo(explanation(await schemas_of(connection, kind), kind, fields, recursive=recursive))


def explanation(schemas: "Schemas", kind: "Kind", fields: list[str], *, recursive: bool = False) -> str:
    """The text; CommandError that names a field that is not there, the nearest and what there is."""
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.schemas import without_field

    schema, path = schemas.of_kind(kind), kind.singular
    for field in fields:
        known: dict[str, Document] = schemas.inner(schema).get("properties", {})
        if field not in known:
            raise CommandError(without_field(path, field, known), EXIT_USAGE)
        schema, path = known[field], f"{path}.{field}"
    lines = [f"KIND:     {kind.kind}", f"VERSION:  {kind.api_version}"]
    lines += [f"FIELD:    {'.'.join(fields)} <{_type(schemas, schema)}>"] if fields else []
    lines += ["", "DESCRIPTION:", *_wrapped(schemas.resolved(schema).get("description", "<empty>"), 4)]
    inner = schemas.inner(schema)
    if recursive:
        shown = _tree(schemas, inner, ())
    else:
        shown = [line for name in sorted(inner.get("properties", {})) for line in _field(schemas, inner, name)]
    return "\n".join([*lines, "", "FIELDS:", *shown] if shown else lines)


def _tree(schemas: "Schemas", owner: "Document", above: tuple[str, ...]) -> list[str]:
    """A line for every field below, indented by depth; what holds itself, as JSON schemas do, is entered once."""
    lines = []
    for field, schema in sorted(owner.get("properties", {}).items()):
        lines.append("  " * (len(above) + 1) + _head(schemas, owner, field))
        name, inner = schemas.below(schema)
        if not name or name not in above:
            lines += _tree(schemas, inner, (*above, name))
    return lines


def _head(schemas: "Schemas", owner: "Document", name: str) -> str:
    needed = " -required-" if name in owner.get("required", ()) else ""
    return f"{name}  <{_type(schemas, owner['properties'][name])}>{needed}"


def _field(schemas: "Schemas", owner: "Document", name: str) -> list[str]:
    schema = owner["properties"][name]
    return [f"  {_head(schemas, owner, name)}", *_wrapped(schemas.resolved(schema).get("description", ""), 6)]


def _type(schemas: "Schemas", schema: "Document") -> str:
    whole: dict[str, Any] = schemas.resolved(schema)
    if "items" in whole:
        return f"[]{_type(schemas, whole['items'])}"
    if isinstance(whole.get("additionalProperties"), dict):
        return f"map[string]{_type(schemas, whole['additionalProperties'])}"
    return str(whole.get("type") or ("Object" if "properties" in whole else "any"))


def _wrapped(text: str, indent: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)
