"""Takes every request that came whole: answers it from a document of the router's own, or begins its exchange (`exchange.py`)."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from urllib.parse import unquote

import structlog

from hekla.serving.router.exchange import Exchange
from hekla.serving.router.house import House
from hekla.serving.router.plan import Refusal
from hekla.serving.router.proxy.answers import answer_bytes, refusal_bytes
from hekla.serving.router.proxy.clients import Call, ClientConnection
from hekla.serving.router.proxy.request_headers import RequestHeaders
from hekla.serving.router.reading import INFERENCE_PATHS, read
from hekla.wire.raw_heads import RequestHead

log = structlog.get_logger(__name__)

Told = tuple[int, bytes, bytes]
"""What the router answers itself: status, content type, text."""
Document = Callable[[], Told]
MODELS = "/v1/models/"
_FOR_WHO_MAY_ASK = ("/v1/", "/metrics")
"""Where there are keys, these need one: they tell names. A scraper without a key has the port of the metrics."""


class Reception:
    """Takes every request that came whole: answers it from a document of its own, or begins its exchange."""

    def __init__(
        self, house: House, documents: Mapping[str, Document], model: Callable[[str], Told] | None = None
    ) -> None:
        """`model` tells of one model by its name, at /v1/models/NAME."""
        self._house = house
        self._documents = documents
        self._model = model

    def receive(self, client: ClientConnection, head: RequestHead, body: bytes) -> Call | None:
        """Answer it now (None), or in time."""
        path = path_of(head.target)
        if head.method != b"POST" or path in self._documents:
            self._answer(client, head, path)
            return None
        house = self._house
        if path not in INFERENCE_PATHS and not house.takes_any_path:
            self._turn_away(client, head, _unknown(path))
            return None
        exchange = Exchange(house, client, head, path, house.clock())
        if house.tracing is not None:
            exchange.trace = house.tracing.begin(head.lines)
        question = read(path, body, RequestHeaders(head.lines))
        if isinstance(question, Refusal):  # what is wrong with a stranger's request is not told to him
            exchange.turn_away(self._house.stranger(RequestHeaders(head.lines)) or question)
            return None
        if head.target.find(b"?") >= 0:  # `in` makes and drops an error where it is asked for bytes
            question.query = head.target.decode("ascii").partition("?")[2]
        exchange.begin(question)
        return exchange

    def _answer(self, client: ClientConnection, head: RequestHead, path: str) -> None:
        document = self._documents.get(path)
        is_head = head.method == b"HEAD"
        if document is None and self._model is not None and path.startswith(MODELS):
            document = partial(self._model, unquote(path[len(MODELS) :]))
        if document is None and path in INFERENCE_PATHS:
            refusal = Refusal(405, "not_found", f"{path} is asked with POST", allow="POST")
        elif document is None:
            refusal = _unknown(path)
        elif not (is_head or head.method == b"GET"):
            refusal = Refusal(405, "not_found", f"{path} is read with GET", allow="GET, HEAD")
        elif (
            path.startswith(_FOR_WHO_MAY_ASK)
            and (stranger := self._house.stranger(RequestHeaders(head.lines))) is not None
        ):
            refusal = stranger
        else:
            status, content_type, text = document()
            client.transport.write(
                answer_bytes(status, text, content_type=content_type, keeps_alive=head.keeps_alive, is_head=is_head)
            )
            client.done(keeps_alive=head.keeps_alive)
            return
        self._turn_away(client, head, refusal)

    @staticmethod
    def _turn_away(client: ClientConnection, head: RequestHead, refusal: Refusal) -> None:
        is_head = head.method == b"HEAD"
        path = path_of(head.target)
        client.transport.write(refusal_bytes(refusal, path, keeps_alive=head.keeps_alive, is_head=is_head))
        client.done(keeps_alive=head.keeps_alive)

    def refused(self, client: ClientConnection, refusal: Refusal) -> None:
        """A request that could not be read."""
        log.debug("request refused", status=refusal.status, why=refusal.for_operators)
        self._house.refused_early += 1


def _unknown(path: str) -> Refusal:
    """Neither a document nor a path of models; said of files and batches too, which OpenAI's clients may look for."""
    return Refusal(404, "not_found", f"{path} is no path that models are asked by{_meant(path)}")


def _meant(path: str) -> str:
    """The path that was probably meant: clients are given a base URL, and it ends in /v1."""
    versioned = f"/v1{path}"
    if versioned in INFERENCE_PATHS or versioned == "/v1/models":
        return f"; did you mean {versioned}?"
    return "; POST /v1/chat/completions asks one, GET /v1/models lists them"


@lru_cache(maxsize=1024)
def path_of(target: bytes) -> str:
    """The path of a request's target, without query, and without the host that a proxy's client may write before it."""
    text = target.decode("ascii")
    if not text.startswith("/"):
        text = "/" + text.partition("://")[2].partition("/")[2]
    return text.partition("?")[0]
