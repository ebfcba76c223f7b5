"""What a caller is told of a step that failed below the desk: in a stock, on a node, in the store."""

from hekla.kube.quota_waiting import is_of_quota
from hekla.sandbox.link import LinkError, SandboxGoneError, UnsupportedError
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.register import ChangedMeanwhileError
from hekla.sandbox.sessions.stock import StockError
from hekla.sandbox.sessions.store import StoreUnavailableError


def refusal_of(error: BaseException) -> RefusedError | None:
    """What a caller is told; None: it is no news for callers."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, StockError):
        return RefusedError(error.status, error.reason, error.sentence)
    if isinstance(error, LinkError):
        return refused(error)
    if isinstance(error, TimeoutError):
        return RefusedError(504, "create_timeout", "sandbox creation timed out")
    if isinstance(error, StoreUnavailableError):
        return RefusedError(503, "store", str(error))
    if isinstance(error, ChangedMeanwhileError):
        return RefusedError(404, "session_not_found", "the session was ended meanwhile")
    return None


def in_vain(why: str) -> RefusedError:
    """What a caller is told whose sandbox the API server refused for as long as it was waited for."""
    status, reason = (429, "quota") if is_of_quota(why) else (504, "create_timeout")
    return RefusedError(status, reason, f"sandbox creation timed out: {why}")


def refused(error: LinkError) -> RefusedError:
    """What a node did not do."""
    if isinstance(error, UnsupportedError):
        return RefusedError(409, "unsupported", str(error))
    if isinstance(error, SandboxGoneError):
        return RefusedError(404, "sandbox_gone", str(error))
    return RefusedError(502, "node", str(error))
