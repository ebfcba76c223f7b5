"""Say what a kind and its fields are for, from the server's own schema.

Examples:

  hekla explain vcjob

  hekla explain vcjob.spec.tasks

  hekla explain pod.spec.containers.resources
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli.options import Kubeconfig

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection

WIDTH = 100


def run(
    what: Annotated[str, typer.Argument(metavar="TYPE[.FIELD...]", show_default=False)], kubeconfig: Kubeconfig = ""
) -> None:
    """Explain a kind or a field."""
    from hekla.cli.connection import run_connected

    run_connected(kubeconfig, lambda connection: _explain(connection, what))


async def _explain(connection: "Connection", what: str) -> None:
    from hekla.cli.resources import discover

    word, *fields = what.split(".")
    kind = (await discover(connection)).find(word).kind
    place = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
    schemas = Schemas(await connection.client.request("GET", f"/openapi/v3/{place}"))
    typer.echo(explanation(schemas, kind, fields))


class Schemas:
    """The schemas of one API version."""

    def __init__(self, openapi: "Document") -> None:
        self._by_name: dict[str, Document] = openapi["components"]["schemas"]

    def of_kind(self, kind: "Kind") -> "Document":
        """A kind's own schema."""
        wanted = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        for schema in self._by_name.values():
            if wanted in schema.get("x-kubernetes-group-version-kind", ()):
                return schema
        return {}

    def resolved(self, schema: "Document") -> "Document":
        """What a schema refers to; its own description wins over that of what it refers to."""
        parts = [schema, *schema.get("allOf", ())]
        target = next((part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part), "")
        return {**self._by_name.get(target, {}), **schema} if target else schema

    def inner(self, schema: "Document") -> "Document":
        """What an object, or every item of a list, is."""
        schema = self.resolved(schema)
        return self.inner(schema["items"]) if "items" in schema else schema


def explanation(schemas: Schemas, kind: "Kind", fields: list[str]) -> str:
    """The text; CommandError that names a field that is not there and what is."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    schema, path = schemas.of_kind(kind), kind.singular
    for field in fields:
        known: dict[str, Document] = schemas.inner(schema).get("properties", {})
        if field not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise CommandError(f'{path} has no field "{field}"; it has: {listed}', EXIT_USAGE)
        schema, path = known[field], f"{path}.{field}"
    lines = [f"KIND:     {kind.kind}", f"VERSION:  {kind.api_version}"]
    lines += [f"FIELD:    {'.'.join(fields)} <{_type(schemas, schema)}>"] if fields else []
    lines += ["", "DESCRIPTION:", *_wrapped(schemas.resolved(schema).get("description", "<empty>"), 4)]
    inner = schemas.inner(schema)
    shown = [line for name in sorted(inner.get("properties", {})) for line in _field(schemas, inner, name)]
    return "\n".join([*lines, "", "FIELDS:", *shown] if shown else lines)


def _field(schemas: Schemas, owner: "Document", name: str) -> list[str]:
    schema = owner["properties"][name]
    needed = " -required-" if name in owner.get("required", ()) else ""
    head = f"  {name}  <{_type(schemas, schema)}>{needed}"
    return [head, *_wrapped(schemas.resolved(schema).get("description", ""), 6)]


def _type(schemas: Schemas, schema: "Document") -> str:
    whole: dict[str, Any] = schemas.resolved(schema)
    if "items" in whole:
        return f"[]{_type(schemas, whole['items'])}"
    if isinstance(whole.get("additionalProperties"), dict):
        return f"map[string]{_type(schemas, whole['additionalProperties'])}"
    return str(whole.get("type") or ("Object" if "properties" in whole else "any"))


def _wrapped(text: str, indent: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)
