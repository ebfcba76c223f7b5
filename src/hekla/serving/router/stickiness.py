"""What a request says of its session, where a ModelServer asks for stickiness.

Headers, cookies and query parameters are looked at here. Of a token's claims only `sub` is known by then, as the user.
"""

from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

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
            case SessionSource.QUERY:
                value = next(iter(parse_qs(question.query).get(source.name, ())), "")
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
