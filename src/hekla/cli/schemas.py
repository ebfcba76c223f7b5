"""The schemas that a server publishes: what fields a kind has. `hekla explain` shows them, and a misspelt field is looked for there."""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection


async def schemas_of(connection: "Connection", kind: "Kind") -> "Schemas":
    """Those of a kind's API version."""
    place = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
    return Schemas(await connection.client.request("GET", f"/openapi/v3/{place}"))


def without_field(place: str, field: str, known: Collection[str]) -> str:
    """`spec has no field "replica"; did you mean "replicas"?`, or what there is where none is near."""
    from hekla.cli.names import nearest

    near = nearest(field, known)
    meant = f'did you mean "{near}"?' if near else f"it has: {', '.join(sorted(known)) or 'none'}"
    return f'{place} has no field "{field}"; {meant}'


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
        target = self._target(schema)
        return {**self._by_name.get(target, {}), **schema} if target else schema

    def inner(self, schema: "Document") -> "Document":
        """What an object, or every item of a list, is."""
        schema = self.resolved(schema)
        return self.inner(schema["items"]) if "items" in schema else schema

    def below(self, schema: "Document") -> "tuple[str, Document]":
        """What an object, an item of a list or a value of a map is, after the name of its schema; empty if it is written in place."""
        whole = self.resolved(schema)
        inner = whole.get("items") or whole.get("additionalProperties")
        return self.below(inner) if isinstance(inner, dict) else (self._target(schema), whole)

    @staticmethod
    def _target(schema: "Document") -> str:
        parts = [schema, *schema.get("allOf", ())]
        return next((str(part["$ref"]).rpartition("/")[2] for part in parts if "$ref" in part), "")
