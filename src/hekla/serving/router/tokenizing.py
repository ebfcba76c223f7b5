"""Turns text prompts into token ids, so that what engines tell of their caches decides for them, too.

KV events are about tokens, and only an engine knows how it renders a chat. So it is asked (`/tokenize`, of messages or a prompt), and what
it says is remembered by how the text begins (`prefix/known_prompts.py`): the next turn of a conversation needs no question. A request
waits for an answer for `WAIT_S` at most, and only where nothing of its prompt is known; what comes later is for those that follow.
Everything else (a chat that has pictures, an engine without /tokenize, too many questions at once) goes by the guess from text as before.

On where a ModelServer says so (`router.hekla.dev/tokenizer`), or the router for all: `engine`, or the path of a tokenizer.json, with
which plain prompts are tokenized here (the package `tokenizers` must be installed); chats are the engine's to render all the same.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import structlog
from msgspec import Raw, Struct

from hekla.serving.router.annotations import ENGINE_TOKENIZES
from hekla.serving.router.backends import Backend
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.plan import Refusal, Waiting
from hekla.serving.router.prefix.blocks import BLOCK_BYTES, Blocks, seed_of
from hekla.serving.router.prefix.known_prompts import Ids, KnownPrompts
from hekla.serving.router.question import Question
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.limits import ClientLimits

WAIT_S: Final = 0.02
"""How long a request waits for its tokens."""
TIMEOUT_S: Final = 5.0
MOST_ASKED: Final = 64
"""Questions under way at once; one more is not asked."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""A longer body is not sent twice."""
TOKENIZE_LIMITS: Final = ClientLimits(connections_per_origin=2, body_bytes=8 * 1024 * 1024)
"""Of an answer, with the ids of a million tokens."""
CHAT_FIELDS: Final = (
    "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "documents",
)  # fmt: skip
"""What decides how a chat is rendered."""

log = structlog.get_logger(__name__)
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class _Told(Struct):
    tokens: list[int]


_told = msgspec.json.Decoder(_Told).decode


class LocalTokenizer(Protocol):
    """Tokenizes text here; called from a thread."""

    def __call__(self, text: str) -> list[int]:
        """The ids, with those that an engine puts before a prompt."""


def read_tokenizer(path: str) -> LocalTokenizer:
    """A tokenizer.json of Hugging Face's. Raises ImportError, or OSError with the path."""
    package: Any = import_module("tokenizers")
    try:
        found = package.Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - the package raises plain Exception for whatever is wrong with a file
        raise OSError(f"{path} is no tokenizer.json: {error}") from None

    def ids(text: str) -> list[int]:
        told: list[int] = found.encode(text).ids
        return told

    return ids


class NotTokenizedError(Exception):
    """Nobody could say which tokens a prompt is made of; the sentence says why."""


class Held(Waiting):
    """A request that waits a moment for what is being found out about its prompt."""

    __slots__ = ("_resume",)

    def __init__(self) -> None:
        self._resume: Callable[[Refusal | None], None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it still does."""
        return self._resume is not None

    def when_ready(self, resume: Callable[[Refusal | None], None]) -> None:
        """As `Waiting`."""
        self._resume = resume

    def abandon(self) -> None:
        """As `Waiting`."""
        self._resume = None

    def go(self) -> None:
        """Ask the desk again, once."""
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume(None)


class Tokenizing:
    """The tokens of one router's prompts."""

    def __init__(self, make_client: Callable[[bool], HttpClient], default: str = "", wait_s: float = WAIT_S) -> None:
        """`make_client` makes the client for engines with TLS (True) or without; `default` is for servers that do not say."""
        self.default = default
        self.outcomes: Counter[str] = Counter()
        """known, asked, late, failed, busy, unfit."""
        self._make_client = make_client
        self._clients: dict[bool, HttpClient] = {}
        self._wait_s = wait_s
        self._prompts = KnownPrompts()
        self._under_way: set[asyncio.Task[None]] = set()
        self._local: dict[str, LocalTokenizer | None] = {}

    def of_text(self, backend: Backend, question: Question) -> Waiting | None:
        """Find a prompt's tokens, or ask for them; None: the request goes on at once."""
        question.was_tokenized = True
        said = backend.traits.tokenizer or self.default
        if question.is_tokens or not any(one.has_events for one in _engines(backend)):
            return None
        blocks = Blocks(question.prompt, seed_of(f"{backend.traits.key}\0{question.model}"))
        size = len(question.prompt)
        known = self._prompts.find(blocks, size) if blocks.count else None
        if known is not None:
            self.outcomes["known"] += 1
            question.token_ids, is_all = known
            if not is_all:
                self._ask(backend, question, blocks, said, None)
            return None
        held = Held()
        if not blocks.count or not self._ask(backend, question, blocks, said, held):
            return None
        asyncio.get_running_loop().call_later(self._wait_s, held.go)
        return held

    async def ids_of(self, backend: Backend, question: Question) -> Ids:
        """The tokens of a prompt, all of them; raises NotTokenizedError where nobody can say."""
        if question.is_tokens:
            return _given(question)
        blocks = Blocks(question.prompt, seed_of(f"{backend.traits.key}\0{question.model}"))
        size = len(question.prompt)
        known = self._prompts.find(blocks, size) if blocks.count else None
        if known is not None and known[1]:
            self.outcomes["known"] += 1
            return known[0]
        body = _tokenizable(question, backend.traits.model or question.model)
        if body is None or len(question.body) > MOST_BYTES:
            self.outcomes["unfit"] += 1
            raise NotTokenizedError("no engine could tokenize a request of this kind or size")
        try:
            ids = await self._ids(backend, body, backend.traits.tokenizer or self.default or ENGINE_TOKENIZES)
        except (WireError, OSError, msgspec.MsgspecError, ImportError) as error:
            self.outcomes["failed"] += 1
            raise NotTokenizedError(str(error)) from error
        self.outcomes["asked"] += 1
        self._prompts.remember(blocks, size, BLOCK_BYTES, ids)
        return ids

    async def close(self) -> None:
        """Ask no more."""
        for task in tuple(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    def gauges(self) -> Iterable[tuple[str, tuple[tuple[str, str], ...], float]]:
        """How prompts came to their tokens."""
        for outcome, count in self.outcomes.items():
            yield "hekla_router_tokenized_total", (("outcome", outcome),), count

    def _ask(self, backend: Backend, question: Question, blocks: Blocks, said: str, held: Held | None) -> bool:
        if len(self._under_way) >= MOST_ASKED or len(question.body) > MOST_BYTES:
            self.outcomes["busy" if len(question.body) <= MOST_BYTES else "unfit"] += 1
            return False
        body = _tokenizable(question, backend.traits.model or question.model)
        if body is None:
            self.outcomes["unfit"] += 1
            return False
        work = self._tokenize(backend, question, body, blocks, len(question.prompt), said, held)
        task = asyncio.create_task(work, name="router tokenizes")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return True

    async def _tokenize(
        self, backend: Backend, question: Question, body: dict[str, Any], blocks: Blocks, size: int, said: str,
        held: Held | None,
    ) -> None:  # fmt: skip
        try:
            ids = await self._ids(backend, body, said)
        except (WireError, OSError, msgspec.MsgspecError, ImportError) as error:
            self.outcomes["failed"] += 1
            log.debug("prompt not tokenized", server=backend.traits.key, why=str(error))
        else:
            self._prompts.remember(blocks, size, BLOCK_BYTES, ids)
            is_late = held is not None and not held.is_waiting
            self.outcomes["late" if is_late else "asked"] += 1
            if held is not None and not is_late:
                question.token_ids = ids
        if held is not None:
            held.go()

    async def _ids(self, backend: Backend, body: dict[str, Any], said: str) -> Ids:
        if said != ENGINE_TOKENIZES and "prompt" in body and (local := await self._local_one(said)) is not None:
            text = msgspec.json.decode(body["prompt"], type=str)
            return np.array(await asyncio.to_thread(local, text), dtype=np.uint32)
        engine = min(_engines(backend), key=lambda one: one.in_flight, default=None)
        if engine is None:
            raise OSError("no engine is there to be asked")
        client = self._clients.get(engine.is_tls)
        if client is None:
            client = self._clients[engine.is_tls] = self._make_client(engine.is_tls)
        host = f"[{engine.host}]" if ":" in engine.host else engine.host
        url = f"http{'s' if engine.is_tls else ''}://{host}:{engine.port}/tokenize"
        headers = (("content-type", "application/json"),)
        answer = await client.request("POST", url, headers, msgspec.json.encode(body), TIMEOUT_S)
        if answer.status != 200 or not isinstance(answer.body, bytes):
            raise OSError(f"{engine.name} answered /tokenize with {answer.status}")
        return np.array(_told(answer.body).tokens, dtype=np.uint32)

    async def _local_one(self, path: str) -> LocalTokenizer | None:
        """The tokenizer of a file, read once; None: it cannot be read, and engines are asked."""
        if path not in self._local:
            try:
                self._local[path] = await asyncio.to_thread(read_tokenizer, path)
            except (ImportError, OSError) as error:
                why = f"{error}; install tokenizers" if isinstance(error, ImportError) else str(error)
                log.warning("tokenizer not read; engines are asked", path=path, why=why)
                self._local[path] = None
        return self._local[path]


def _given(question: Question) -> Ids:
    """Of a prompt that came as token ids."""
    try:
        return np.array(msgspec.json.decode(question.prompt, type=list[int]), dtype=np.uint32)
    except (msgspec.DecodeError, OverflowError) as error:
        raise NotTokenizedError(f"the prompt is no list of token ids: {error}") from None


def _engines(backend: Backend) -> list[Endpoint]:
    return [*backend.decode.members, *backend.prefill.members]


def _tokenizable(question: Question, model: str) -> dict[str, Any] | None:
    """What an engine is asked; None: it could not say."""
    try:
        fields = _fields(question.body)
    except msgspec.MsgspecError:
        return None
    if question.path.endswith("/chat/completions") and "messages" in fields:
        return {"model": model, **{name: fields[name] for name in CHAT_FIELDS if name in fields}}
    prompt = fields.get("prompt")
    if question.path.endswith("/completions") and prompt is not None and bytes(prompt).startswith(b'"'):
        return {"model": model, "prompt": prompt}
    return None
