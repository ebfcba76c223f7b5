"""Which admission webhooks a write concerns, and what they are asked and may answer. Pure; the call itself is made by
`admission_rules/webhooks.py`.

The questions and answers are AdmissionReview v1 (Kubernetes' dynamic admission control).
"""

import base64
import binascii
import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.patch import json_patch
from hekla.apiserver.status import StatusError

CONFIGURATIONS = frozenset({"mutatingwebhookconfigurations", "validatingwebhookconfigurations"})
DEFAULT_TIMEOUT_S = 10


class WebhookAnswerError(Exception):
    """A webhook answered something that is not an AdmissionReview for our question."""


@dataclass(frozen=True)
class Webhook:
    """One webhook of one configuration."""

    configuration: str
    spec: Document

    @property
    def name(self) -> str:
        """Its qualified name."""
        return str(self.spec["name"])

    @property
    def timeout_s(self) -> float:
        """How long it may take."""
        return float(self.spec.get("timeoutSeconds") or DEFAULT_TIMEOUT_S)

    @property
    def may_fail(self) -> bool:
        """Whether a webhook that cannot be asked lets the write pass."""
        return self.spec.get("failurePolicy") == "Ignore"

    @property
    def wants_another_look(self) -> bool:
        """Whether it is asked again when a later webhook changed the object."""
        return self.spec.get("reinvocationPolicy") == "IfNeeded"


def concerned(request: AdmissionRequest, reader: Reader, configurations: str) -> list[Webhook]:
    """The webhooks of all configurations of one kind that want to see this write, by name of configuration."""
    if request.kind.plural in CONFIGURATIONS:
        return []  # no webhook may lock out the change that removes it
    listed = reader.list(f"{configurations}.admissionregistration.k8s.io")
    if not listed:
        return []
    found = sorted(listed, key=lambda one: str(one["metadata"]["name"]))
    return [
        Webhook(one["metadata"]["name"], spec)
        for one in found
        for spec in one.get("webhooks") or ()
        if _has_rule(spec, request) and _selects(spec, request, reader)
    ]


def _has_rule(spec: Document, request: AdmissionRequest) -> bool:
    return any(_rule_matches(rule, request) for rule in spec.get("rules") or ())


def _rule_matches(rule: Document, request: AdmissionRequest) -> bool:
    kind = request.kind
    scope = rule.get("scope") or "*"
    return (
        _holds(rule.get("operations"), str(request.operation))
        and _holds(rule.get("apiGroups"), kind.group)
        and _holds(rule.get("apiVersions"), kind.version)
        and (scope == "*" or (scope == "Namespaced") == kind.is_namespaced)
        and any(_resource_matches(one, kind.plural, request.subresource) for one in rule.get("resources") or ())
    )


def _resource_matches(pattern: str, resource: str, subresource: str) -> bool:
    wanted, slash, below = pattern.partition("/")
    if wanted not in ("*", resource):
        return False
    return below in ("*", subresource) if slash else not subresource


def _selects(spec: Document, request: AdmissionRequest, reader: Reader) -> bool:
    objects = [one for one in (request.object, request.old) if one is not None]
    selector = spec.get("objectSelector")
    if selector and not any(matches_selector(selector, _labels(one)) for one in objects):
        return False
    selector = spec.get("namespaceSelector")
    if not selector or not (request.namespace or request.kind.resource == "namespaces"):
        return True
    if request.kind.resource == "namespaces":
        return any(matches_selector(selector, _labels(one)) for one in objects)
    namespace = reader.get("namespaces", "", request.namespace)
    return matches_selector(selector, _labels(namespace or {}))


def matches_selector(selector: Document, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector document selects a set of labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _expression_holds(expression: Document, labels: dict[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    tests = {
        "In": key in labels and labels[key] in values,
        "NotIn": key not in labels or labels[key] not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return tests.get(expression["operator"], False)


def _labels(document: Document) -> dict[str, str]:
    return (document.get("metadata") or {}).get("labels") or {}


def _holds(values: Sequence[str] | None, value: str) -> bool:
    return bool(values) and ("*" in (values or ()) or value in (values or ()))


# ---- the question


def review_of(request: AdmissionRequest, uid: str) -> Document:
    """The AdmissionReview that a webhook is sent."""
    kind = request.kind
    named = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    asked: Document = {
        "uid": uid,
        "kind": named,
        "resource": resource,
        "requestKind": named,
        "requestResource": resource,
    }
    if request.subresource:
        asked |= {"subResource": request.subresource, "requestSubResource": request.subresource}
    asked |= {"name": request.name, "namespace": request.namespace, "operation": str(request.operation)}
    user: Document = {"username": request.user.name, "groups": list(request.user.groups)}
    if request.user.uid:
        user["uid"] = request.user.uid
    asked |= {"userInfo": user, "object": request.object, "oldObject": request.old, "dryRun": request.is_dry_run}
    if request.operation is Operation.DELETE:
        asked["object"] = None
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


# ---- the answer


@dataclass(frozen=True)
class Verdict:
    """What a webhook decided."""

    is_allowed: bool
    patch: Sequence[Document] = ()
    warnings: Sequence[str] = ()
    code: int = 403
    reason: str = ""
    message: str = ""


def verdict_of(body: bytes, uid: str) -> Verdict:
    """Read a webhook's answer; raises WebhookAnswerError for one that makes no sense."""
    try:
        review = json.loads(body)
        answer = review["response"]
        if answer["uid"] != uid:
            raise WebhookAnswerError(f"expected response.uid={uid!r}, got {answer['uid']!r}")
        status = answer.get("status") or {}
        return Verdict(
            is_allowed=answer["allowed"] is True,
            patch=_patch_of(answer),
            warnings=[str(one) for one in answer.get("warnings") or ()],
            code=_code(status),
            reason=str(status.get("reason") or ""),
            message=str(status.get("message") or ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WebhookAnswerError(f"the answer is no AdmissionReview: {error}") from None


def _code(status: Document) -> int:
    code = int(status.get("code") or 403)
    return code if 400 <= code < 600 else 403


def _patch_of(answer: Document) -> Sequence[Document]:
    if not answer.get("patch"):
        return ()
    if answer.get("patchType") != "JSONPatch":
        raise WebhookAnswerError(f'expected patchType "JSONPatch", got {answer.get("patchType")!r}')
    try:
        patch: Any = json.loads(base64.b64decode(answer["patch"], validate=True))
    except (binascii.Error, ValueError) as error:
        raise WebhookAnswerError(f"the patch cannot be decoded: {error}") from None
    return list(patch)


def patched(document: Document, verdict: Verdict) -> Document:
    """The object after a webhook's patch."""
    return json_patch(copy.deepcopy(document), list(verdict.patch)) if verdict.patch else document


def refused(webhook: Webhook, verdict: Verdict) -> StatusError:
    """How a denial is told to the user."""
    said = f": {verdict.message}" if verdict.message else (f": {verdict.reason}" if verdict.reason else "")
    why = f"the request{said}" if said else "the request without explanation"
    message = f'admission webhook "{webhook.name}" denied {why}'
    return StatusError(verdict.code, verdict.reason or ("Forbidden" if verdict.code == 403 else ""), message)


def unreachable(webhook: Webhook, why: str) -> StatusError:
    """500: a webhook that must be asked cannot be."""
    message = f'Internal error occurred: failed calling webhook "{webhook.name}": {why}'
    details: Document = {"causes": [{"message": f'failed calling webhook "{webhook.name}": {why}'}]}
    return StatusError(500, "InternalError", message, details=details)


def has_side_effects(webhook: Webhook) -> bool:
    """Whether a dry run must not reach it."""
    return webhook.spec.get("sideEffects") not in {"None", "NoneOnDryRun"}
