"""What is wrong with probes and with what runs after the start and before the stop of a container."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names

_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_COUNTS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_NOT_NEGATIVE = "must be greater than or equal to 0"


def check_probe(probe: Document | None, path: str, *, is_readiness: bool = False) -> list[FieldError]:
    """A handler and sensible numbers."""
    if probe is None:
        return []
    errors = check_handler(probe, path)
    errors += [invalid(f"{path}.{key}", probe[key], _NOT_NEGATIVE) for key in _COUNTS if probe.get(key, 0) < 0]
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        errors.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0"))
    if grace is not None and is_readiness:
        errors.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes"))
    if not is_readiness and probe.get("successThreshold", 1) != 1:
        errors.append(invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1"))
    return errors


def check_lifecycle(lifecycle: Document | None, path: str, *, grace_s: int) -> list[FieldError]:
    """PostStart and preStop; a sleep ends before the pod's grace does."""
    errors = []
    for key in ("postStart", "preStop"):
        if lifecycle and key in lifecycle:
            errors += check_handler(lifecycle[key], f"{path}.{key}", grace_s)
    return errors


def check_handler(handler: Document, path: str, grace_s: int = 30) -> list[FieldError]:
    """Exactly one thing to do."""
    said = [key for key in _HANDLERS if key in handler]
    if not said:
        return [required(path, "must specify a handler type")]
    errors = [forbidden_field(f"{path}.{key}", "may not specify more than 1 handler type") for key in said[1:]]
    return errors + _check_action(said[0], handler[said[0]], f"{path}.{said[0]}", grace_s)


def _check_action(key: str, action: Document, path: str, grace_s: int) -> list[FieldError]:
    match key:
        case "exec":
            return [] if action.get("command") else [required(f"{path}.command")]
        case "httpGet":
            return _check_http_get(action, path)
        case "sleep":
            return _check_sleep(action, path, grace_s)
        case _:
            return check_port(action.get("port", 0), f"{path}.port")


def _check_http_get(action: Document, path: str) -> list[FieldError]:
    errors = [] if action.get("path") else [required(f"{path}.path")]
    errors += check_port(action.get("port", 0), f"{path}.port")
    if action.get("scheme") not in (None, "HTTP", "HTTPS"):
        errors.append(not_supported(f"{path}.scheme", action["scheme"], ("HTTP", "HTTPS")))
    for header in action.get("httpHeaders", ()):
        name = header.get("name", "")
        errors += [invalid(f"{path}.httpHeaders", name, said) for said in names.http_header(name)]
    return errors


def _check_sleep(action: Document, path: str, grace_s: int) -> list[FieldError]:
    seconds = action.get("seconds", 0)
    said = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_s})"
    return [] if 0 <= seconds <= grace_s else [invalid(path, seconds, said)]


def check_port(port: int | str, path: str) -> list[FieldError]:
    """A number or a port's name."""
    said = names.port_number(port) if isinstance(port, int) else names.port_name(port)
    return [invalid(path, port, one) for one in said]
