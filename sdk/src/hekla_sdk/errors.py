"""What can go wrong, each with the server's own sentence.

HeklaError
├── UnreachableError        no answer: the gateway is not there, or the connection broke
├── BadAnswerError          an answer that makes no sense, or is larger than what was asked to be kept
├── SettingsError           no gateway or key is known here
├── CommandFailedError      `Completed.check`: a command ended with another code than 0
├── CommandTimeoutError     a command's time was over; it was ended, and what it printed is here
└── RefusedError            the server said no
    ├── InvalidError        400, 413, 422
    ├── AuthenticationError 401, 403
    ├── NotFoundError       404: nothing, or somebody else's
    ├── ConflictError       409: not in this state
    ├── LimitError          402, 429, 507
    └── UnavailableError    5xx
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hekla_sdk.answers import Completed


class HeklaError(Exception):
    """Whatever this package raises on purpose."""


class UnreachableError(HeklaError):
    """There was no answer."""


class BadAnswerError(HeklaError):
    """The answer makes no sense, or is too large."""


class SettingsError(HeklaError):
    """It is not known which gateway to ask, or with which key."""


class CommandFailedError(HeklaError):
    """A command ended with another code than 0."""

    def __init__(self, completed: "Completed") -> None:
        last = (completed.stderr or completed.stdout).strip().rpartition("\n")[2]
        super().__init__(
            f"the command ended with exit code {completed.exit_code}" + (f": {last[:500]}" if last else "")
        )
        self.completed = completed


class CommandTimeoutError(HeklaError):
    """A command's time was over."""

    def __init__(self, sentence: str, completed: "Completed") -> None:
        super().__init__(sentence)
        self.completed = completed
        """What it had printed until then."""


class RefusedError(HeklaError):
    """The server said no: its sentence, its stable reason and the HTTP status."""

    def __init__(self, sentence: str, reason: str = "", status: int = 0) -> None:
        super().__init__(sentence)
        self.sentence, self.reason, self.status = sentence, reason, status


class InvalidError(RefusedError):
    """What was asked makes no sense to the server."""


class AuthenticationError(RefusedError):
    """The key is missing, wrong, or not good for this."""


class NotFoundError(RefusedError):
    """There is no such thing, or it is somebody else's."""


class ConflictError(RefusedError):
    """Not in the state that it is in."""


class LimitError(RefusedError):
    """More than is allowed, or than there is room for."""


class UnavailableError(RefusedError):
    """The server cannot now."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: InvalidError, 413: InvalidError, 422: InvalidError, 401: AuthenticationError, 403: AuthenticationError,
    404: NotFoundError, 409: ConflictError, 402: LimitError, 429: LimitError, 507: LimitError,
}  # fmt: skip
_STATUS_OF_CODE = {
    "not_found": 404, "invalid_argument": 400, "unauthenticated": 401, "permission_denied": 403, "already_exists": 409,
    "failed_precondition": 409, "resource_exhausted": 429, "unavailable": 503, "unimplemented": 501,
}  # fmt: skip
"""Streams say no after their head: in a word of Connect's."""


def refusal(status: int, reason: str, sentence: str) -> RefusedError:
    """The error for a refusal; a word of Connect's says more than the status that carried it."""
    status = _STATUS_OF_CODE.get(reason, status)
    kind = _BY_STATUS.get(status, UnavailableError if status >= 500 else RefusedError)
    return kind(sentence, reason, status)
