"""What there is: groups, versions and resources, in the plain form and in the aggregated one.

Documents are made from the registry when first asked for and kept until it changes; an ETag saves clients the reading.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from hekla.api.meta import Document, Kind
from hekla.apiserver.bodies import encode
from hekla.apiserver.negotiation import JSON, PLAIN, YAML, Wanted, wanted
from hekla.apiserver.presentation import as_yaml
from hekla.apiserver.registry import Registry, Served
from hekla.wire.messages import Request, Response

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
MAX_MADE = 512
"""Documents that are kept; there are some fifty of them for honest clients."""

VERSION: Document = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.0-hekla",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
"""The Kubernetes whose answers this server was checked against."""


class Discovery:
    """Answers /api, /apis, /version and what lies between them and a resource."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: dict[tuple[str, Wanted], tuple[bytes, str, str]] = {}
        registry.on_change(self._made.clear)

    def answer(self, request: Request, path: str) -> Response | None:
        """The document at a path; None if there is none."""
        make = self._maker(path.rstrip("/") or "/")
        if make is None:
            return None
        accept = wanted(request.headers.get("accept", "")) if "accept" in request.headers else PLAIN
        known = self._made.get((path, accept))
        if known is None:
            if len(self._made) >= MAX_MADE:
                self._made.clear()  # a caller can vary the path's slashes and the Accept's parameters without end
            known = self._made[path, accept] = _rendered(make(accept), accept)
        body, content_type, tag = known
        if path.rstrip("/") == "/api":
            body = body.replace(b'"serverAddress":""', b'"serverAddress":' + encode(request.headers.get("host", "")))
        headers = (("etag", tag), ("vary", "Accept"), ("cache-control", "no-cache, private"))
        if request.headers.get("if-none-match") == tag:
            return Response(304, b"", content_type, headers)
        return Response(200, body, content_type, headers)

    def _maker(self, path: str) -> Callable[[Wanted], Document] | None:
        match path.split("/")[1:]:
            case ["version"]:
                return lambda _accept: VERSION
            case [""]:
                return lambda _accept: {"paths": self._paths()}
            case ["api"]:
                return self._core_versions
            case ["apis"]:
                return self._groups
            case ["api", version] if self._registry.in_version("", version):
                return lambda _accept: self._resources("", version)
            case ["apis", group] if self._group(group):
                return lambda _accept: {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)}
            case ["apis", group, version] if self._registry.in_version(group, version):
                return lambda _accept: self._resources(group, version)
        return None

    def _paths(self) -> list[str]:
        paths = [
            "/api",
            "/api/v1",
            "/apis",
            "/healthz",
            "/livez",
            "/metrics",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
            "/version",
        ]
        for group in self._registry.groups():
            paths += [f"/apis/{group.name}", *(f"/apis/{group.name}/{version}" for version in group.versions)]
        return sorted(paths)

    def _core_versions(self, accept: Wanted) -> Document:
        if accept.shape == "APIGroupDiscoveryList":
            return _aggregated_list([self._aggregated("", ["v1"])], accept)
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": ""}
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}

    def _groups(self, accept: Wanted) -> Document:
        groups = self._registry.groups()
        if accept.shape == "APIGroupDiscoveryList":
            return _aggregated_list([self._aggregated(group.name, group.versions) for group in groups], accept)
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [self._group(group.name) for group in groups]}

    def _group(self, name: str) -> Document:
        group = next((one for one in self._registry.groups() if one.name == name), None)
        if group is None:
            return {}
        versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in group.versions]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, group: str, version: str) -> Document:
        resources: list[Document] = []
        for served in self._registry.in_version(group, version):
            resources += _listed(served)
        head: Document = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
        return head | {"groupVersion": f"{group}/{version}" if group else version, "resources": resources}

    def _aggregated(self, group: str, versions: list[str]) -> Document:
        found: list[Document] = []
        for version in versions:
            resources = [_aggregated_resource(served) for served in self._registry.in_version(group, version)]
            found.append({"version": version, "resources": resources, "freshness": "Current"})
        return {"metadata": {"name": group} if group else {}, "versions": found}


def _rendered(document: Document, accept: Wanted) -> tuple[bytes, str, str]:
    body = encode(document)
    content_type = JSON
    if accept.media_type == YAML:
        body, content_type = as_yaml(body), YAML
    elif accept.shape == "APIGroupDiscoveryList" and document.get("kind") == accept.shape:
        content_type = AGGREGATED.format(accept.version)
    return body, content_type, f'"{hashlib.sha256(body).hexdigest().upper()}"'


def _aggregated_list(items: list[Document], accept: Wanted) -> Document:
    api_version = f"apidiscovery.k8s.io/{accept.version}"
    return {"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items}


def _listed(served: Served) -> list[Document]:
    kind = served.kind
    entry = _named(kind, kind.plural, kind.singular, kind.kind, list(served.verbs))
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    storage_hash = served.storage_hash or (_hash_of(served) if served.is_custom else "")
    if storage_hash:
        entry["storageVersionHash"] = storage_hash
    entries = [entry]
    for part in served.subresources.values():
        said = _named(kind, f"{kind.plural}/{part.name}", "", part.kind or kind.kind, list(part.verbs))
        if part.group or part.version:
            said |= {"group": part.group, "version": part.version}
        entries.append(said)
    return entries


def _hash_of(served: Served) -> str:
    import base64

    text = f"{served.kind.group}/{served.storage_version}/{served.kind.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _named(kind: Kind, name: str, singular: str, kind_name: str, verbs: list[str]) -> dict[str, Any]:
    return {"name": name, "singularName": singular, "namespaced": kind.is_namespaced, "kind": kind_name, "verbs": verbs}


def _aggregated_resource(served: Served) -> Document:
    kind = served.kind
    entry: Document = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.is_namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(served.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if served.subresources:
        entry["subresources"] = [
            {
                "subresource": part.name,
                "responseKind": {
                    "group": part.group or kind.group,
                    "version": part.version or kind.version,
                    "kind": part.kind or kind.kind,
                },
                "verbs": list(part.verbs),
            }
            for part in served.subresources.values()
        ]
    return entry
