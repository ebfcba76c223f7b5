"""What a request says of its session, where a ModelServer asks for stickiness.

Headers, cookies, query parameters and the claims of a token that was believed; a claim that is no text and no number says nothing.
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
            case SessionSource.JWT_CLAIM:
                value = _claim(question, source.name)
            case _:
                value = ""
        if value:
            return value
    return ""


def _claim(question: Question, name: str) -> str:
    value = question.claims.get(name, question.user if name == "sub" else "")
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _cookie(header: str, name: str) -> str:
    if not header:
        return ""
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
