"""Puts a document before admission rules without a server: what they make of it, or the sentence they refuse it with."""

from collections.abc import Sequence

import msgspec

from hekla.api.meta import Document, Resource
from hekla.apiserver.admission import AdmissionRequest, AdmissionRule, Operation, User
from hekla.apiserver.status import StatusError
from hekla.testing.documents import kind_named


class Objects:
    """A `Reader` over given documents."""

    def __init__(self, documents: Sequence[Document] = ()) -> None:
        self._found = {(kind_named(one["apiVersion"], one["kind"]).resource, _key(one)): one for one in documents}

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        """One object's document."""
        return self._found.get((resource, (namespace, name)))

    def list(self, resource: str, namespace: str = "") -> Sequence[Document]:
        """All objects of a resource."""
        return [one for (kind, key), one in self._found.items() if kind == resource and namespace in ("", key[0])]


def admit(
    rules: Sequence[AdmissionRule],
    document: Document,
    *,
    there: Sequence[Document] = (),
    old: Document | None = None,
    operation: Operation = Operation.CREATE,
) -> Document:
    """The document as it comes out of the rules; raises StatusError if one refuses it."""
    kind = kind_named(document["apiVersion"], document["kind"])
    metadata = document["metadata"]
    request = AdmissionRequest(
        kind=kind,
        operation=operation,
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        subresource="",
        object=None if operation is Operation.DELETE else msgspec.json.decode(msgspec.json.encode(document)),
        old=old,
        user=User("tester"),
    )
    reader = Objects(there)
    for rule in rules:
        if rule.wants(request):
            rule.mutate(request, reader)
    for rule in rules:
        if rule.wants(request):
            rule.validate(request, reader)
    return request.object or {}


def refusal(
    rules: Sequence[AdmissionRule],
    document: Document,
    *,
    there: Sequence[Document] = (),
    old: Document | None = None,
    operation: Operation = Operation.CREATE,
) -> str:
    """The sentence with which the rules refuse; empty if they let it pass."""
    try:
        admit(rules, document, there=there, old=old, operation=operation)
    except StatusError as error:
        return error.message
    return ""


def api_object(kind: type[Resource], name: str, namespace: str = "", **fields: object) -> Document:
    """A document of a kind."""
    info = kind.kind_info
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, **fields}


def _key(document: Document) -> tuple[str, str]:
    return document["metadata"].get("namespace", ""), document["metadata"]["name"]
