"""What an API server says of who asked, when it passes a request on: headers beside a certificate that proves them.

Kubernetes' aggregation layer does it so; the embedded server does, too, where the scheduler is a process of its own. Whom
to believe stands in a ConfigMap that every API server keeps. Pure; the wire has checked the certificate by then.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from hekla.api.meta import Document
from hekla.apiserver.admission import User
from hekla.apiserver.auth.pki import FRONT_PROXY, subject_of
from hekla.wire.messages import Request

NAMESPACE, CONFIG_MAP = "kube-system", "extension-apiserver-authentication"
"""Where Kubernetes' API servers say how they are to be believed; READER is the Role that may read it."""
READER = "extension-apiserver-authentication-reader"

_USER, _GROUP, _EXTRA = "X-Remote-User", "X-Remote-Group", "X-Remote-Extra-"


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How an API server is to be believed."""

    authorities: str
    """PEM of those who sign its certificate."""

    names: tuple[str, ...] = ()
    """Names that the certificate may have; any, if none is given."""

    user_headers: tuple[str, ...] = (_USER,)
    group_headers: tuple[str, ...] = (_GROUP,)
    extra_prefixes: tuple[str, ...] = (_EXTRA,)


def published(authorities: str, clients: str) -> Iterator[tuple[str, Document]]:
    """The paths and objects of an API server that passes requests on as we do: how to believe it, who signs certificates of `clients`,
    and who may read that.
    """
    data = {
        "client-ca-file": clients,
        "requestheader-client-ca-file": authorities,
        "requestheader-allowed-names": json.dumps([FRONT_PROXY]),
        "requestheader-username-headers": json.dumps([_USER]),
        "requestheader-group-headers": json.dumps([_GROUP]),
        "requestheader-extra-headers-prefix": json.dumps([_EXTRA]),
    }
    metadata = {"name": CONFIG_MAP, "namespace": NAMESPACE}
    yield (
        f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},
    )
    group, verbs = "rbac.authorization.k8s.io", ["get", "list", "watch"]
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CONFIG_MAP], "verbs": verbs}
    metadata = {"name": READER, "namespace": NAMESPACE}
    yield (
        f"/apis/{group}/v1/namespaces/{NAMESPACE}/roles/{READER}",
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
    )


def trust_of(config_map: Document) -> Trust | None:
    """Whom such a ConfigMap says to believe; None if this API server passes nothing on."""
    data = config_map.get("data") or {}
    authorities = str(data.get("requestheader-client-ca-file") or "")
    users = _names(data, "requestheader-username-headers")
    if not authorities or not users:
        return None
    return Trust(
        authorities=authorities, names=_names(data, "requestheader-allowed-names"), user_headers=users,
        group_headers=_names(data, "requestheader-group-headers"),
        extra_prefixes=_names(data, "requestheader-extra-headers-prefix"),
    )  # fmt: skip


def _names(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        found = json.loads(data.get(key) or "[]")
    except ValueError:
        return ()
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def headers_of(user: User) -> Iterator[tuple[str, str]]:
    """What is said of a user."""
    yield _USER, user.name
    for group in user.groups:
        yield _GROUP, group
    for key, values in user.extra.items():
        for value in values:
            yield _EXTRA + quote(key, safe=""), value


def user_of(request: Request, trust: Trust) -> User | None:
    """Who asked, by the word of an API server; None if it is not one who speaks.

    Headers that are repeated come joined by ", ": a group with that in its name is read as two. So nothing may be granted
    by the groups alone that the API server has not granted before.
    """
    certificate = request.peer.certificate
    if certificate is None or (trust.names and subject_of(certificate)[0] not in trust.names):
        return None
    name = next((found for header in trust.user_headers if (found := request.headers.get(header.lower()))), "")
    if not name:
        return None
    groups = [one for header in trust.group_headers for one in _several(request.headers.get(header.lower(), ""))]
    prefixes = tuple(prefix.lower() for prefix in trust.extra_prefixes)
    extra = {
        unquote(key[len(prefix) :]): tuple(_several(value))
        for key, value in request.headers.items()
        for prefix in prefixes
        if key.startswith(prefix)
    }
    return User(name, tuple(groups), extra=extra)


def _several(value: str) -> list[str]:
    return [one for one in value.split(", ") if one]
