"""What can go wrong between a client and an API server.

ApiError                  the server answered with a Status: code, reason, message, details
├── NotFoundError         404
├── AlreadyExistsError    409, the name is taken
├── ConflictError         409, the object has changed since it was read
├── GoneError             410, that revision has been compacted
├── InvalidError          422, the object breaks a rule
└── TooManyRequestsError  429, retry after `retry_after_s`
TransportError            the server could not be reached, or the connection broke
"""

from typing import Any


class KubeError(Exception):
    """Base of everything this package raises."""


class TransportError(KubeError):
    """The server could not be reached, or the connection broke before the answer was whole."""


class ApiError(KubeError):
    """The server said no."""

    path = ""
    """The URL that was asked, where the client knows it."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details or {}

    @property
    def retry_after_s(self) -> float | None:
        """How long the server asks to wait, if it does."""
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if seconds is not None else None


class NotFoundError(ApiError):
    """404: there is no such object."""


class AlreadyExistsError(ApiError):
    """409: the name is taken."""


class ConflictError(ApiError):
    """409: the object has changed since it was read."""


class GoneError(ApiError):
    """410: that revision has been compacted; list again."""


class InvalidError(ApiError):
    """422: the object breaks a rule."""


class TooManyRequestsError(ApiError):
    """429: try again later."""


def error_from_status(status: dict[str, Any]) -> ApiError:
    """The exception that a Status document stands for."""
    code, reason = int(status.get("code") or 500), str(status.get("reason") or "")
    by_reason: dict[str, type[ApiError]] = {
        "AlreadyExists": AlreadyExistsError,
        "Conflict": ConflictError,
        "Expired": GoneError,
    }
    by_code: dict[int, type[ApiError]] = {
        404: NotFoundError, 409: ConflictError, 410: GoneError, 422: InvalidError, 429: TooManyRequestsError,
    }  # fmt: skip
    cls = by_reason.get(reason) or by_code.get(code) or ApiError
    return cls(code, reason, str(status.get("message") or reason), status.get("details"))


def hint_of(why: str) -> str:
    """What whoever runs a component can do about a refusal that tells of its credentials or its rights; else empty."""
    if "forbidden" in why:
        return "the account lacks the right; `hekla install --render` has the roles"
    if "Unauthorized" in why:
        return "its credentials are not taken: a token has expired, or is of another cluster"
    return ""


def hint_for_a_write(error: KubeError) -> str:
    """What to do about a write that was refused for want of a right or of the kind; empty where a quota or a policy forbids it."""
    why = str(error)
    if "404 page not found" in why or "could not find the requested resource" in why:
        return "the server does not know the kind; `hekla install --render` has the definitions of ours"
    return hint_of(why) if " cannot " in why or "forbidden" not in why else ""
