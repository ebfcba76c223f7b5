"""How the API server says no: `StatusError` carries the Status document that Kubernetes would answer with.

The sentences are Kubernetes' own, to the letter, because clients match on them; `fielderrors.py` builds the causes
of an Invalid one.
"""

from collections.abc import Sequence

from hekla.api.meta import Document


class StatusError(Exception):
    """An answer of kind Status with `status: Failure`."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Document | None = None,
        headers: Sequence[tuple[str, str]] = (),
        go_on: str = "",
    ) -> None:
        """With `go_on` as continue token the rest of a list can be had that is no longer one."""
        super().__init__(message)
        self.go_on = go_on
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers = details, headers

    def document(self) -> Document:
        """The Status object as it goes over the wire."""
        metadata = {"continue": self.go_on} if self.go_on else {}
        status: Document = {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def qualified(resource: str, group: str) -> str:
    """`deployments.apps`, or `pods` for the core group: how Kubernetes names a resource in a sentence."""
    return f"{resource}.{group}" if group else resource


def details_of(resource: str, group: str, name: str) -> Document:
    """The `details` that name an object."""
    details: Document = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = resource
    return details


def not_found(resource: str, group: str, name: str) -> StatusError:
    """404 for one object."""
    message = f'{qualified(resource, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=details_of(resource, group, name))


def already_exists(resource: str, group: str, name: str, *, is_going: bool = False) -> StatusError:
    """409 because the name is taken, perhaps by an object that is about to go."""
    message = f'{"object is being deleted: " if is_going else ""}{qualified(resource, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=details_of(resource, group, name))


def conflict(resource: str, group: str, name: str, why: str) -> StatusError:
    """409 because the object changed since it was read, or a precondition failed."""
    message = f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=details_of(resource, group, name))


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def forbidden(resource: str, group: str, name: str, why: str) -> StatusError:
    """403 from admission or authorization."""
    named = f'{qualified(resource, group)} "{name}"' if name else qualified(resource, group)
    return StatusError(403, "Forbidden", f"{named} is forbidden: {why}", details=details_of(resource, group, name))


def no_such_resource() -> StatusError:
    """404 for a path that no resource is served at."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> StatusError:
    """405."""
    said = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", said, details={})


def not_acceptable(offered: Sequence[str]) -> StatusError:
    """406: nothing that the caller accepts can be made."""
    said = f"406: Not Acceptable\n\nAvailable representations: {', '.join(offered)}"
    return StatusError(406, "NotAcceptable", said, details={})


def unsupported_media(accepted: Sequence[str]) -> StatusError:
    """415: the body is in a format that is not read here."""
    said = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", said)


def too_large(limit: int) -> StatusError:
    """413: the body is longer than the limit."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def expired(message: str, go_on: str = "") -> StatusError:
    """410: what is asked for is no longer kept."""
    return StatusError(410, "Expired", message, go_on=go_on)


def unauthorized() -> StatusError:
    """401: nobody knows who asks."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def internal(message: str) -> StatusError:
    """500: a mistake of ours, said without its details."""
    return StatusError(500, "InternalError", message)


def rejected(reason: str = "Invalid", code: int = 422) -> StatusError:
    """A request that cannot be carried out, with nothing more to say (a JSON patch whose test fails)."""
    return StatusError(code, reason, "the server rejected our request due to an error in our request", details={})


def success(code: int | None = None, details: Document | None = None) -> Document:
    """The Status document of a request that succeeded and has no object to show."""
    status: Document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    if code is not None:
        status["code"] = code
    return status
