"""What a request says of its session, where a ModelServer asks for stickiness.

Headers and cookies are looked at here; a claim of a token is the authenticated user, who is known by then.
"""

from http.cookies import CookieError, SimpleCookie

from hekla.api.kthena.server import SessionSource, SessionSticky
from hekla.serving.router.question import Question


def session_of(sticky: SessionSticky, question: Question) -> str:
    """The first value that is not empty; empty: the request belongs to no session."""
    for source in sticky.sources:
        match source.type:
            case SessionSource.HEADER:
                value = question.headers.get(source.name.lower(), "")
            case SessionSource.COOKIE:
                value = _cookie(question.headers.get("cookie", ""), source.name)
            case SessionSource.JWT_CLAIM if source.name == "sub":
                value = question.user
            case _:
                value = ""
        if value:
            return value
    return ""


def _cookie(header: str, name: str) -> str:
    if not header:
        return ""
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
