"""What is said of logs, exec, attach, port-forward and proxy of a pod before a node is asked: its name, container and host.

`node/endpoint.py` answers for pods that have a node; a pod that waits for one has an empty log and nothing to enter.
"""

import re
from collections.abc import Sequence

from hekla.api.meta import Document
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import decode_document
from hekla.apiserver.calls import Call
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid
from hekla.apiserver.status import StatusError, bad_request, not_found
from hekla.apiserver.store import Key
from hekla.wire.messages import Response

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_INT64 = re.compile(r"[+-]?[0-9]+", re.ASCII)


def answered_here(backend: Backend, call: Call) -> Response | None:
    """The answer of a pod that no node can give one for; raises what is wrong with the request; None: ask the node."""
    if call.target.resource != "pods":
        return None
    part, name = call.target.subresource, call.target.name
    if part == "proxy":
        name = _without_port(name)
    stored = backend.store.get_durable(Key("pods", call.target.namespace, name))
    if stored is None:
        raise not_found("pods", "", name)
    pod: Document = decode_document(stored.body)
    if part == "log":
        check_log_options(call, name)
    if part in ("log", "exec", "attach"):
        _check_container(call, pod)
    if pod["spec"].get("nodeName"):
        return None
    if part == "log":
        return Response(200, b"", "text/plain")
    if part == "proxy":
        raise bad_request("address not allowed")
    raise bad_request(f"pod {name} does not have a host assigned")


def _without_port(name: str) -> str:
    """The pod's name in `web`, `web:80` or `http:web:80`."""
    parts = name.split(":")
    return parts[1] if len(parts) == 3 else parts[0]


def check_log_options(call: Call, name: str) -> None:
    """Refuse numbers that no log can be read by."""
    tail, limit = _number(call, "tailLines"), _number(call, "limitBytes")
    since, errors = _number(call, "sinceSeconds"), list[FieldError]()
    if tail is not None and tail < 0:
        errors.append(invalid("tailLines", tail, "must be greater than or equal to 0"))
    if limit is not None and limit < 1:
        errors.append(invalid("limitBytes", limit, "must be greater than 0"))
    if since is not None and call.option("sinceTime"):
        errors.append(forbidden_field("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    elif since is not None and since < 1:
        errors.append(invalid("sinceSeconds", since, "must be greater than 0"))
    if errors:
        raise _invalid_options(name, errors)


def _number(call: Call, name: str) -> int | None:
    text = call.option(name)
    if not text:
        return None
    if not _INT64.fullmatch(text):
        raise bad_request(f'strconv.ParseInt: parsing "{text[:60]}": invalid syntax')
    if len(text) > 19 or not -(2**63) <= int(text) < 2**63:
        raise bad_request(f'strconv.ParseInt: parsing "{text[:60]}": value out of range')
    return int(text)


def _invalid_options(name: str, errors: Sequence[FieldError]) -> StatusError:
    lines = [f"{one.field}: {one.message}" for one in errors]
    said = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    causes = [{"reason": str(one.cause), "message": one.message, "field": one.field} for one in errors]
    details: Document = {"name": name, "kind": "PodLogOptions", "causes": causes}
    return StatusError(422, "Invalid", f'PodLogOptions "{name}" is invalid: {said}', details=details)


def _check_container(call: Call, pod: Document) -> None:
    """Refuse a container that the pod does not have, or none where there are several."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    asked = call.option("container") or (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER, "")
    own, first, debugging = (_names(spec, key) for key in ("containers", "initContainers", "ephemeralContainers"))
    if asked in (*own, *first, *debugging) or (not call.option("container") and len(own) == 1):
        return
    if call.option("container"):
        raise bad_request(f"container {asked} is not valid for pod {name}")
    choices = f"choose one of: [{' '.join(own)}]"
    if first:
        choices += f" or one of the init containers: [{' '.join(first)}]"
    raise bad_request(f"a container name must be specified for pod {name}, {choices}")


def _names(spec: Document, key: str) -> list[str]:
    return [str(one.get("name", "")) for one in spec.get(key) or ()]
