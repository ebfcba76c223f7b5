"""`hekla why modelroute/X` and `modelserver/X`: where requests go, which engines there are ready, and why none is.

Decided from the objects, so that it answers without a router; `hekla route explain` asks a router what it would choose.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hekla.cli.counting import counted
from hekla.cli.why_below import complaints, explanations, is_unplaced, listed, sleep_of

if TYPE_CHECKING:
    from hekla.api.kthena import ModelRoute, ModelServer
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

TAKES_ALL = "requests are routed by this route"
MOST_PODS = 5
"""Pods of one server that are explained."""


async def why_route(connection: "Connection", name: str, namespace: str) -> "Document":
    """The answer about a ModelRoute; raises NotFoundError."""
    import msgspec

    from hekla.api.kthena import ModelRoute

    found = await connection.client.get_document(ModelRoute.kind_info, name.partition(".")[2], namespace)
    route = msgspec.convert(found, ModelRoute)
    wanted = list(targets(route))
    servers = await _servers(connection, namespace, [one["server"] for one in wanted if one.get("server")])
    for one in wanted:
        if one.get("server"):
            what_to_do = "create it or name another" if one["weight"] else "take it out of the rule"
            one |= servers.get(one["server"], {"error": f'ModelServer "{one["server"]}" does not exist; {what_to_do}'})
    names = ", ".join(sorted({route.spec.model_name, *route.spec.lora_adapters} - {""})) or "any model"
    return {
        "kind": "Explanations",
        "metadata": {"name": name, "namespace": namespace},
        "message": f"{name.replace('.', '/', 1)} {_refused(route)}{route_verdict(wanted)}, for requests for {names}",
        "complaints": [*complaints(found), *_reservations(route)],
        "targets": wanted,
    }


async def why_server(connection: "Connection", name: str, namespace: str) -> "Document":
    """The answer about a ModelServer; raises NotFoundError."""
    from hekla.api.kthena import ModelServer

    server = name.partition(".")[2]
    found = await connection.client.get_document(ModelServer.kind_info, server, namespace)
    target = {"rule": 0, "server": server, **(await _servers(connection, namespace, [server])).get(server, {})}
    verdict = "takes requests" if target.get("ready") else "takes no requests"
    return {
        "kind": "Explanations",
        "metadata": {"name": name, "namespace": namespace},
        "message": f"{name.replace('.', '/', 1)} {verdict}",
        "complaints": list(complaints(found)),
        "targets": [target],
    }


def _refused(route: "ModelRoute") -> str:
    """Said first: what its targets could take matters to nobody, as no request comes by this route."""
    is_refused = any(one.type == "Accepted" and one.status == "False" for one in route.status.conditions)
    return "takes no requests; it " if is_refused else ""


def _reservations(route: "ModelRoute") -> Iterator[str]:
    """What an accepted route does not take: what comes by no Gateway of its own, and rules that are never asked."""
    for one in route.status.conditions:
        if one.type == "Accepted" and one.status == "True" and one.message != TAKES_ALL:
            yield one.message


def targets(route: "ModelRoute") -> Iterator[dict[str, Any]]:
    """Where each rule of a route sends requests."""
    for number, rule in enumerate(route.spec.rules):
        for one in rule.target_models:
            weight = 100 if one.weight is None else one.weight
            if one.model_server_name:
                yield {"rule": number, "server": one.model_server_name, "weight": weight}
            elif one.external_model_provider_name:
                yield {"rule": number, "provider": one.external_model_provider_name, "weight": weight}


def route_verdict(wanted: Sequence[Mapping[str, Any]]) -> str:
    """In how many of the targets that have a weight requests are taken."""
    named, wanted = wanted, [one for one in wanted if one.get("weight") != 0]
    providers = sum("provider" in one for one in wanted)
    servers = [one for one in wanted if one.get("server")]
    ready = sum(bool(one.get("ready")) for one in servers)
    if not wanted:
        return f"leads nowhere: {'the weight of each target is 0' if named else 'it has no targets'}"
    told = f"leads to {len(servers)} ModelServers, of which {ready} {'takes' if ready == 1 else 'take'} requests"
    if len(servers) == 1:
        told = f"leads to one ModelServer, which {'takes requests' if ready else 'takes none now'}"
    return told + (f", and to {counted(providers, 'provider')} outside" if providers else "")


def server_state(server: "ModelServer", pods: Iterable["Document"]) -> dict[str, Any]:
    """Which pods a server leads to, and which of them are ready. Pure."""
    import msgspec

    from hekla.api.kthena.labels import NAME
    from hekla.api.pods import Pod
    from hekla.serving.router.backends import is_ready, selects

    labels = server.spec.workload_selector.match_labels
    matched = [pod for pod in pods if labels and selects(labels, pod["metadata"].get("labels") or {})]
    ready = [pod for pod in matched if is_ready(msgspec.convert(pod, Pod))]
    state: dict[str, Any] = {
        "pods": len(matched),
        "ready": len(ready),
        "readyPods": sorted(pod["metadata"]["name"] for pod in ready)[:MOST_PODS],
        "waitingPods": sorted(pod["metadata"]["name"] for pod in matched if is_unplaced(pod)),
        "otherPods": sorted(
            f"{pod['metadata']['name']} ({(pod.get('status') or {}).get('phase') or 'Pending'})"
            for pod in matched
            if pod not in ready and not is_unplaced(pod)
        ),
    }
    if not matched:
        told = ", ".join(f"{key}={value}" for key, value in labels.items()) or "(none given)"
        serving = f"; ask `hekla why modelserving/{labels[NAME]}`" if NAME in labels else ""
        state["error"] = f"no pod of the namespace has the labels {told}{serving}"
    port, named = server.spec.workload_port.port, named_ports(ready)
    if named and port not in named:
        told = ", ".join(map(str, named))
        state["error"] = (
            f"requests go to port {port}, and what its pods declare or are probed at is {told}: workloadPort?"
        )
    return state


def named_ports(pods: Iterable["Document"]) -> list[int]:
    """The ports that pods' containers name; none where one names none, as it may listen at any."""
    named = [set(ports_of(one)) for pod in pods for one in pod["spec"].get("containers") or ()]
    return sorted(set().union(*named)) if all(named) else []


def ports_of(container: "Document") -> Iterator[int]:
    """The ports that a container declares, and those that its probes ask by number."""
    yield from (port["containerPort"] for port in container.get("ports") or ())
    for name in ("readinessProbe", "livenessProbe", "startupProbe"):
        for asked in (container.get(name) or {}).values():
            if isinstance(asked, dict) and isinstance(asked.get("port"), int):
                yield asked["port"]


async def _servers(connection: "Connection", namespace: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How each of these ModelServers fares; those that do not exist are left out."""
    import msgspec

    from hekla.api.kthena import AutoscalingPolicy, ModelServer, ModelServing
    from hekla.api.pods import Pod

    kinds = (ModelServer, Pod, ModelServing, AutoscalingPolicy)
    documents = await listed(connection, [one.kind_info for one in kinds], namespace)
    pods = [one for one in documents if one["kind"] == "Pod"]
    found: dict[str, dict[str, Any]] = {}
    for one in documents:
        name = one["metadata"]["name"]
        if one["kind"] == "ModelServer" and name in names:
            server = msgspec.convert(one, ModelServer)
            state = server_state(server, pods)
            if not state["pods"] and (told := _sleep_of(server, documents)):
                state["error"] = told
            asked = [f"pod.{pod}" for pod in state["waitingPods"][:MOST_PODS]]
            answers = await explanations(connection, namespace, asked)
            state["why"] = {
                pod: answer["message"]
                for pod, answer in zip(state["waitingPods"], answers, strict=False)
                if answer is not None
            }
            found[name] = state
    return found


def _sleep_of(server: "ModelServer", documents: Sequence["Document"]) -> str:
    """Why a server's engines are not there, where they sleep."""
    import msgspec

    from hekla.api.kthena import ModelServing
    from hekla.serving.router.holding import makes

    labels = server.spec.workload_selector.match_labels
    policies = [one for one in documents if one["kind"] == "AutoscalingPolicy"]
    servings = [one for one in documents if one["kind"] == "ModelServing"]
    its = [one for one in servings if makes(msgspec.convert(one, ModelServing), labels)]
    return next(filter(None, (sleep_of(one, policies) for one in its)), "")


def text(found: Mapping[str, Any]) -> str:
    """As people read it."""
    lines = [f"{found['message']} (namespace {found['metadata']['namespace']})"]
    lines += [f"  {said}" for said in found["complaints"]]
    for one in found["targets"]:
        lines += ["", *_target_lines(one)]
    return "\n".join(lines)


def _target_lines(one: Mapping[str, Any]) -> Iterator[str]:
    weight = f", weight {one['weight']}" if "weight" in one else ""
    if one.get("weight") == 0:
        weight += " (no request goes there)"
    if "provider" in one:
        yield f"rule {one['rule']}{weight}: ExternalModelProvider {one['provider']}"
        return
    counts = f": {counted(one['pods'], 'pod')}, {one['ready']} ready" if "pods" in one else ""
    yield f"rule {one['rule']}{weight}: ModelServer {one['server']}{counts}"
    if one.get("error"):
        yield f"  {one['error']}"
    if one.get("readyPods"):
        yield f"  ready    {', '.join(one['readyPods'])}"
    if one.get("otherPods"):
        yield f"  placed   {', '.join(one['otherPods'][:MOST_PODS])}"
    for pod in one.get("waitingPods", [])[:MOST_PODS]:
        yield f"  waits    {pod}: {one['why'].get(pod, 'the scheduler does not know it (yet)')}"
