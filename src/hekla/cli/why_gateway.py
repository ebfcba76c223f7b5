"""`hekla why gateway/X`, `httproute/X` and `inferencepool/X`: what is attached, what was refused and why, which engines are ready.

Decided from the objects and from what their statuses say, so that it answers without a router. `why_route.py` answers for ModelRoutes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hekla.cli.counting import counted
from hekla.cli.why_below import complaints, listed
from hekla.cli.why_route import MOST_PODS

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

Part = dict[str, Any]
"""`name`, `state` and what is to be said of it, `says`."""

NOBODY_LOOKED = "no controller has answered yet"
MOST_ROUTES = 50
"""Routes of one Gateway that are shown; those that were refused come first."""


async def why_gateway(connection: "Connection", name: str, namespace: str) -> "Document":
    """The answer about a Gateway; raises NotFoundError."""
    from hekla.api.foreign import Gateway, HttpRoute
    from hekla.api.kthena import ModelRoute

    found = await connection.client.get_document(Gateway.kind_info, name.partition(".")[2], namespace)
    routes = await listed(connection, [HttpRoute.kind_info, ModelRoute.kind_info], "")
    return _answer(name, namespace, *gateway_parts(found, routes), said=_conditions_against(found))


async def why_http_route(connection: "Connection", name: str, namespace: str) -> "Document":
    """The answer about an HTTPRoute; raises NotFoundError."""
    from hekla.api.foreign import HttpRoute, InferencePool
    from hekla.api.pods import Pod

    found = await connection.client.get_document(HttpRoute.kind_info, name.partition(".")[2], namespace)
    places = sorted({place for place, _ in _backends(found)})
    there = [
        one for place in places for one in await listed(connection, [InferencePool.kind_info, Pod.kind_info], place)
    ]
    return _answer(name, namespace, *route_parts(found, there))


async def why_pool(connection: "Connection", name: str, namespace: str) -> "Document":
    """The answer about an InferencePool; raises NotFoundError."""
    from hekla.api.foreign import InferencePool
    from hekla.api.pods import Pod

    found = await connection.client.get_document(InferencePool.kind_info, name.partition(".")[2], namespace)
    pods = await listed(connection, [Pod.kind_info], namespace)
    return _answer(name, namespace, *pool_parts(found, pods))


def _answer(name: str, namespace: str, verdict: str, parts: list[Part], said: Sequence[str] = ()) -> "Document":
    return {
        "kind": "Explanations",
        "metadata": {"name": name, "namespace": namespace},
        "message": f"{name.replace('.', '/', 1)} {verdict}",
        "complaints": list(said),
        "parts": parts,
    }


# what each comes to. Pure


def gateway_parts(gateway: "Document", routes: Sequence["Document"]) -> tuple[str, list[Part]]:
    """The verdict on a Gateway, its listeners, and the routes that name it."""
    told = {one.get("name"): one for one in _status(gateway).get("listeners") or ()}
    listeners = [_listener(one, told.get(one.get("name"))) for one in gateway["spec"].get("listeners") or ()]
    served = sum(one["state"].startswith("served") for one in listeners)
    me = (gateway["metadata"].get("namespace", ""), gateway["metadata"]["name"])
    named = [part for route in routes for part in _parents(route) if part["gateway"] == me]
    attached = sorted((_attached(one) for one in named), key=lambda one: (one["state"] == "accepted", one["name"]))
    accepted = sum(one["state"] == "accepted" for one in attached)
    verdict = f"serves {served} of {counted(len(listeners), 'listener')}, and takes {accepted} of {counted(len(attached), 'route')} that name it"
    if not _status(gateway).get("conditions"):
        verdict = (
            f"is served by nobody: {NOBODY_LOOKED}; is its class {gateway['spec'].get('gatewayClassName')!r} there?"
        )
    return verdict, [*listeners, *attached[:MOST_ROUTES]]


def route_parts(route: "Document", there: Sequence["Document"]) -> tuple[str, list[Part]]:
    """The verdict on an HTTPRoute, what its Gateways say, and its pools."""
    parents = list(_parents(route))
    accepted = sum(one["state"] == "accepted" for one in parents)
    pools = {_key(one): one for one in there if one["kind"] == "InferencePool"}
    found: list[Part] = []
    for place, name in dict.fromkeys(_backends(route)):
        if (place, name) in pools:
            state, says = _endpoints(pools[place, name], [one for one in there if one["kind"] == "Pod"])
            found.append({"name": f"InferencePool {place}/{name}", "state": state, "says": says})
        else:
            found.append({"name": f"InferencePool {place}/{name}", "state": "is not there", "says": []})
    verdict = f"is taken by {accepted} of {counted(len(parents), 'parent')} that it names"
    return verdict, [*({key: one[key] for key in ("name", "state", "says")} for one in parents), *found]


def pool_parts(pool: "Document", pods: Sequence["Document"]) -> tuple[str, list[Part]]:
    """The verdict on an InferencePool, and which Gateways send requests to it."""
    state, says = _endpoints(pool, pods)
    parents = []
    for one in _status(pool).get("parents") or ():
        state_of, why = _held(one.get("conditions"))
        where = _place(one.get("parentRef") or {}, pool["metadata"].get("namespace", ""))
        parents.append({"name": f"Gateway {'/'.join(where)}", "state": state_of, "says": why})
    if not parents:
        says = [*says, "no Gateway sends requests to it: no accepted HTTPRoute names it"]
    return f"has {state}", [{"name": "endpoints", "state": state, "says": says}, *parents]


def _listener(listener: "Document", told: "Document | None") -> Part:
    host = f", host {listener['hostname']}" if listener.get("hostname") else ""
    name = f"listener {listener.get('name')} ({listener.get('protocol')}, port {listener.get('port')}{host})"
    if told is None:
        return {"name": name, "state": NOBODY_LOOKED, "says": []}
    against = _against(told.get("conditions"))
    state = "not served" if against else f"served, {counted(told.get('attachedRoutes') or 0, 'route')} attached"
    return {"name": name, "state": state, "says": against}


def _parents(route: "Document") -> Iterator[Part]:
    """What became of each reference of a route to a Gateway."""
    where = route["metadata"].get("namespace", "")
    told = _status(route).get("parents")
    for reference in (route.get("spec") or {}).get("parentRefs") or ():
        if reference.get("kind", "Gateway") != "Gateway":
            continue
        place, section = _place(reference, where), reference.get("sectionName")
        if route["kind"] == "ModelRoute" or told is None:
            state, says = _held(_status(route).get("conditions"))
        else:
            mine = (one for one in told if _is_same(one.get("parentRef") or {}, reference, where))
            state, says = _held(next((one.get("conditions") for one in mine), None))
        if state == NOBODY_LOOKED:
            says = ["there is no such Gateway, or its class is another controller's"]
        name = f"Gateway {'/'.join(place)}" + (f", listener {section}" if section else "")
        yield {
            "gateway": place,
            "name": name,
            "state": state,
            "says": says,
            "route": f"{route['kind']} {where}/{route['metadata']['name']}",
        }


def _attached(parent: Part) -> Part:
    return {"name": parent["route"], "state": parent["state"], "says": parent["says"]}


def _held(conditions: Any) -> tuple[str, list[str]]:
    """Whether a reference was accepted, and what is said against it."""
    against = _against(conditions)
    accepted = next((one for one in conditions or () if one.get("type") == "Accepted"), None)
    if accepted is None:
        return NOBODY_LOOKED, against
    return "accepted" if accepted.get("status") == "True" else "refused", against


def _against(conditions: Any) -> list[str]:
    if not isinstance(conditions, list):
        return []
    wrong = (one for one in conditions if (one.get("status") == "False") != (one.get("type") == "Conflicted"))
    return [
        f"{one.get('type')} is {str(one.get('status')).lower()} ({one.get('reason')}): {one.get('message')}"
        for one in wrong
    ]


def _conditions_against(document: "Document") -> list[str]:
    return list(complaints(document))


def _endpoints(pool: "Document", pods: Sequence["Document"]) -> tuple[str, list[str]]:
    import msgspec

    from hekla.api.pods import Pod
    from hekla.serving.router.backends import is_ready, selects

    spec = pool.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    place = pool["metadata"].get("namespace", "")
    its = [one for one in pods if one["metadata"].get("namespace", "") == place]
    matched = [one for one in its if labels and selects(labels, one["metadata"].get("labels") or {})]
    ready = sorted(one["metadata"]["name"] for one in matched if is_ready(msgspec.convert(one, Pod)))
    others = sorted(one["metadata"]["name"] for one in matched if one["metadata"]["name"] not in ready)
    ports = ", ".join(str(one.get("number")) for one in spec.get("targetPorts") or ())
    says = [f"at port {ports}"] if ports else []
    says += [f"ready      {', '.join(ready[:MOST_PODS])}"] if ready else []
    says += [f"not ready  {', '.join(others[:MOST_PODS])}: ask `hekla why pod/{others[0]}`"] if others else []
    if not matched:
        told = ", ".join(f"{key}={value}" for key, value in labels.items()) or "(none given)"
        says.append(f"no pod of the namespace has the labels {told}")
    return f"{counted(len(matched), 'pod')}, {len(ready)} ready", says


def _backends(route: "Document") -> list[tuple[str, str]]:
    where = route["metadata"].get("namespace", "")
    rules = (route.get("spec") or {}).get("rules") or ()
    named = (one for rule in rules for one in rule.get("backendRefs") or () if one.get("kind") == "InferencePool")
    return [(one.get("namespace") or where, one["name"]) for one in named]


def _place(reference: Mapping[str, Any], where: str) -> tuple[str, str]:
    return reference.get("namespace") or where, reference.get("name", "")


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> bool:
    parts = ("sectionName", "port")
    return _place(one, where) == _place(other, where) and all(
        (one.get(key) or None) == (other.get(key) or None) for key in parts
    )


def _key(document: "Document") -> tuple[str, str]:
    return document["metadata"].get("namespace", ""), document["metadata"]["name"]


def _status(document: "Document") -> Mapping[str, Any]:
    return document.get("status") or {}


def text(found: Mapping[str, Any]) -> str:
    """As people read it."""
    lines = [f"{found['message']} (namespace {found['metadata']['namespace']})"]
    lines += [f"  {said}" for said in found["complaints"]]
    for one in found["parts"]:
        lines += ["", f"{one['name']}: {one['state']}", *(f"  {said}" for said in one["says"])]
    return "\n".join(lines)
