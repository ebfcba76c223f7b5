"""Requests to admission, as a line each."""

from collections.abc import Callable
from typing import Any

from hekla.api.meta import Resource
from hekla.apiserver.admission import AdmissionRequest, Operation, User

Refusal = Callable[[AdmissionRequest, Any], str]


def request(kind: type[Resource], document: dict[str, Any]) -> AdmissionRequest:
    metadata = document.setdefault("metadata", {"name": "one", "namespace": "ml"})
    return AdmissionRequest(
        kind=kind.kind_info,
        operation=Operation.CREATE,
        namespace=metadata.get("namespace", "ml"),
        name=metadata.get("name", ""),
        subresource="",
        object=document,
        old=None,
        user=User("ann"),
    )


def refused(refusal: Refusal, kind: type[Resource], document: dict[str, Any]) -> str:
    sentence = refusal(request(kind, document), None)
    assert sentence, "it was let in"
    return sentence
