"""AdmissionReview v1 in and out: the rules of the embedded server's admission, asked by an API server elsewhere. Pure.

A rule is the same value in both places; here its changes become a JSON patch, and its refusal a denial that the API
server tells as `admission webhook "..." denied the request: ...`.
"""

import base64
import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hekla.api.meta import KINDS, Document, Kind, Resource
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader, User
from hekla.apiserver.webhook_rule import WebhookRule
from hekla.serving.admission import ADMISSION_RULES as OF_SERVING
from hekla.workloads.admission import rules_of
from hekla.workloads.admission_resource_groups import HOME
from hekla.workloads.ours import USUAL, Ours

VERSION = "admission.k8s.io/v1"
REFUSED = 400
"""The code of a denial, as the embedded server answers it."""


class ReviewError(Exception):
    """A request that is no AdmissionReview for this path; the sentence says why."""


def path_of(rule: WebhookRule) -> str:
    """Where a rule is asked: `/jobs/mutate`, `/queues/validate`, as in Volcano."""
    return f"/{rule.resource.partition('.')[0]}/{'mutate' if rule.change is not None else 'validate'}"


def rules_by_path(namespace: str = HOME, ours: Ours = USUAL) -> Mapping[str, WebhookRule]:
    """Every rule that can be asked, registered or not, with the configuration of a namespace, for whose pods these are."""
    rules = (*rules_of(namespace, ours), *OF_SERVING)
    found = {path_of(rule): rule for rule in rules if isinstance(rule, WebhookRule)}
    assert len(found) == len(rules), "two rules share a path, and one would never be asked"
    return found


def answered(rule: WebhookRule, body: bytes, reader: Reader) -> Document:
    """The AdmissionReview that answers one; raises ReviewError."""
    uid, request = parsed(body)
    response: Document = {"uid": uid, "allowed": True}
    if not rule.wants(request):
        return _review(response)
    before = copy.deepcopy(request.object)
    said = _strange_shape(request)
    if said and not request.kind.group.endswith(".volcano.sh"):
        return _review(response)  # a newer Kubernetes' own business
    if not said:
        rule.mutate(request, reader)
        said = rule.refusal(request, reader).strip() if rule.refusal is not None else ""
    if said:
        return _review({"uid": uid, "allowed": False, "status": {"code": REFUSED, "message": said}})
    patch = list(difference(before, request.object)) if rule.change is not None else []
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    if request.warnings:
        response["warnings"] = list(request.warnings)
    return _review(response)


def _strange_shape(request: AdmissionRequest) -> str:
    """What is wrong with an object whose fields are of other types than a rule could read. The API server has checked it
    by its CustomResourceDefinition, which may be another release's than ours.
    """
    for document in (request.object, request.old):
        try:
            if document is not None:
                msgspec.convert(document, _class(request.kind.resource, request.kind.version))
        except msgspec.ValidationError as error:
            return f"the object has another shape than this release of Hekla knows: {error}"
    return ""


def parsed(body: bytes) -> tuple[str, AdmissionRequest]:
    """The review's uid, and what it asks about."""
    try:
        review = json.loads(body)
        if review["apiVersion"] != VERSION or review["kind"] != "AdmissionReview":
            raise ReviewError(
                f"expected an AdmissionReview of {VERSION}, got {review['kind']} of {review['apiVersion']}"
            )
        asked = review["request"]
        user = asked.get("userInfo") or {}
        request = AdmissionRequest(
            kind=_kind(asked["resource"]), operation=Operation(asked["operation"]),
            namespace=asked.get("namespace") or "", name=asked.get("name") or "",
            subresource=asked.get("subResource") or "", object=_object(asked.get("object")),
            old=_object(asked.get("oldObject")), is_dry_run=asked.get("dryRun") is True,
            user=User(user.get("username") or "", tuple(user.get("groups") or ()), user.get("uid") or ""),
        )  # fmt: skip
        return str(asked["uid"]), request
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReviewError(f"the request is no AdmissionReview: {error!r}") from None


def _kind(resource: Mapping[str, str]) -> Kind:
    group, version, plural = resource.get("group") or "", resource["version"], resource["resource"]
    return _class(f"{plural}.{group}" if group else plural, version).kind_info


def _class(resource: str, version: str) -> type[Resource]:
    found = (KINDS.get(f"{resource}/{version}"), *(one for one in KINDS.values() if one.kind_info.resource == resource))
    known = next((one for one in found if one is not None), None)
    if known is None:
        raise ReviewError(f'{resource} of version "{version}" is no kind that this webhook knows')
    return known


def _object(found: Any) -> Document | None:
    if found is not None and not isinstance(found, dict):
        raise ReviewError("an object of the review is no mapping")
    return found


def _review(response: Document) -> Document:
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}


def difference(before: Any, after: Any, path: str = "") -> Iterator[Document]:
    """The JSON patch that makes one document of another: mappings field by field, lists item by item where they are of
    one length.
    """
    if before == after and type(before) is type(after) and not isinstance(before, dict | list):
        return  # of mappings and lists this is not said: {"x": 0} equals {"x": False}
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
        for key, value in after.items():
            place = f"{path}/{_escaped(key)}"
            if key in before:
                yield from difference(before[key], value, place)
            else:
                yield {"op": "add", "path": place, "value": value}
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from difference(old, new, f"{path}/{number}")
    else:
        yield {"op": "replace", "path": path, "value": after}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
