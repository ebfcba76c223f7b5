"""Answers for one simulated engine over HTTP, path by path, as vLLM's API server does."""

import asyncio
import base64
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hekla.app.engine import fields, messages
from hekla.app.engine.adapters import Adapters
from hekla.app.engine.answers import VLLM_VERSION, Answer, error_body
from hekla.app.engine.asking import Asker
from hekla.app.engine.bodies import (
    Chat,
    Completion,
    Detokenize,
    Embedding,
    LoraChange,
    Tokenize,
    chat_tokens,
    new_id,
    prompts_of,
)
from hekla.app.engine.checking import MALFORMED, BadBodyError, UnreadableError, read
from hekla.app.engine.messages import MessageAnswer, Messages
from hekla.app.engine.metrics import CONTENT_TYPE, EngineMetrics
from hekla.app.engine.refusals import refuse_chat, refuse_range, refuse_shape
from hekla.app.engine.responses import Respond, ResponseAnswer, not_stored
from hekla.app.engine.scoring import Rerank, Score, prompts_of_pairs, reranked, scored
from hekla.app.engine.settings import EngineSettings
from hekla.app.engine.transfers import Transfers
from hekla.app.engine.worker import Worker
from hekla.simulation.engine.engine import AskError
from hekla.simulation.engine.happenings import Ending, Happening
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import detokenize, hash_blocks, salt_of, tokenize
from hekla.wire.messages import Request, Response, Sink

COMPLETION_TOKENS = 16
"""What a completion is given that says no limit, as OpenAI's API has it."""
EMBEDDING_SIZE = 64

Hear = Callable[[Happening], None]
NewAnswer = Callable[[Callable[[bytes], None], Callable[[], None]], Hear]
"""Makes what listens for an answer, of where its bytes go and what to call at its end."""

_json = msgspec.json.Encoder().encode


class EngineApi:
    """One engine's API."""

    def __init__(self, settings: EngineSettings, worker: Worker, metrics: EngineMetrics) -> None:
        self.is_ready = True
        self._settings = settings
        self._worker = worker
        self._metrics = metrics
        self._adapters = Adapters(settings.names, settings.model, settings.max_model_len, dict(settings.lora_modules))
        self._transfers = Transfers(worker.engine.shape.lease_s)
        self._is_asleep = self._is_paused = False
        self._load = 0
        self._asker = Asker(
            max_model_len=settings.max_model_len, block_size=settings.block_size,
            mean_output_tokens=settings.mean_output_tokens,
        )  # fmt: skip
        self._posts: dict[str, Callable[[Request], Response | Awaitable[Response]]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._complete,
            "/v1/embeddings": self._embed,
            "/v1/responses": self._respond,
            "/v1/messages": self._converse,
            "/v1/messages/count_tokens": self._count_messages,
            **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), self._rerank),
            **dict.fromkeys(("/score", "/v1/score"), self._score),
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/load_lora_adapter": self._load_lora,
            "/v1/unload_lora_adapter": self._unload_lora,
            "/sleep": lambda _: self._halt({"status": "sleeping", "level": 1}, sleeps=True),
            "/wake_up": lambda _: self._go_on({"status": "awake", "tags": None}),
            "/pause": lambda _: self._halt({"status": "paused"}),
            "/resume": lambda _: self._go_on({"status": "resumed"}),
            "/reset_prefix_cache": self._reset_prefix_cache,
            "/reset_mm_cache": lambda _: Response(content_type=""),
            "/reset_encoder_cache": lambda _: Response(content_type=""),
            "/ping": lambda _: self._health(),
        }
        self._gets: dict[str, Callable[[], Response]] = {
            "/health": self._health,
            "/ping": self._health,
            "/version": lambda: _ok({"version": VLLM_VERSION}),
            "/v1/models": lambda: _ok(self._adapters.list()),
            "/metrics": lambda: Response(body=metrics.text(worker.engine), content_type=CONTENT_TYPE),
            "/metrics/": lambda: Response(body=metrics.text(worker.engine), content_type=CONTENT_TYPE),
            "/load": lambda: _ok({"server_load": self._load}),
            "/is_sleeping": lambda: _ok({"is_sleeping": self._is_asleep}),
            "/is_paused": lambda: _ok({"is_paused": self._is_paused}),
        }

    def listens_on(self, port: int) -> None:
        """Other engines find this one there."""
        self._transfers.port = port

    def answer(self, request: Request) -> Response | Awaitable[Response]:
        """Answer a request."""
        path = request.path
        try:
            if request.method == "HEAD" and path == "/metrics":
                return Response(content_type=CONTENT_TYPE)
            if request.method == "GET" and path in self._gets:
                return self._gets[path]()
            if request.method == "POST" and path in self._posts:
                return self._posts[path](request)
            if request.method == "POST" and path.startswith("/kv_transfer/"):
                return self._fetched(path)
            if path.startswith("/v1/responses/"):
                raise not_stored(path.removeprefix("/v1/responses/").removesuffix("/cancel"))
        except (BadBodyError, AskError, UnreadableError) as error:
            return _refused(error, path)
        return self._misdirected(request, path)

    def _misdirected(self, request: Request, path: str) -> Response:
        bare = path.rstrip("/")
        if bare != path and (bare in self._gets or bare in self._posts):
            return Response(
                status=307, content_type="", headers=(("location", f"http://{request.headers.get('host', '')}{bare}"),)
            )
        known = path in self._gets or path in self._posts
        return _json_response(405 if known else 404, {"detail": "Method Not Allowed" if known else "Not Found"})

    # generation

    def _chat(self, request: Request) -> Response | Awaitable[Response]:
        body = read(request, Chat, fields.CHAT)
        refuse_shape(body)
        lora = self._known(body.model)
        refuse_chat(body)
        return self._generate(request, body, [chat_tokens(body.messages, body.tools)], lora, "chatcmpl", None)

    def _complete(self, request: Request) -> Response | Awaitable[Response]:
        body = read(request, Completion, fields.COMPLETION)
        refuse_shape(body)
        lora = self._known(body.model)
        return self._generate(request, body, prompts_of(body.prompt), lora, "cmpl", COMPLETION_TOKENS)

    def _known(self, model: str | None) -> str:
        """The adapter that a request is for, empty for the model itself. Raises BadBodyError."""
        self._refuse_unready()
        return self._adapters.lora_of(model)

    def _generate(
        self, request: Request, body: Chat | Completion, prompts: list[list[int]], lora: str, prefix: str,
        default: int | None,
    ) -> Response | Awaitable[Response]:  # fmt: skip
        refuse_range(body)
        name = new_id(prefix, body.request_id or request.headers.get("x-request-id"))
        asks = self._asker.asks(body, prompts, lora, name, default)
        model, transfer = body.model or self._settings.names[0], body.kv_transfer_params

        def answer(write: Callable[[bytes], None], done: Callable[[], None]) -> Hear:
            return Answer(
                name=name, model=model, body=body, asks=asks, write=write, done=done, transfer=self._transfers.kept
            ).hear

        return self._streamed(asks, answer, transfer) if body.stream else self._whole(asks, answer, transfer)

    def _converse(self, request: Request) -> Response | Awaitable[Response]:
        body = read(request, Messages, fields.MESSAGES)
        chat = body.chat()
        lora = self._known(body.model)
        refuse_chat(chat)
        refuse_range(chat)
        name = new_id("chatcmpl", request.headers.get("x-request-id"))
        asks = self._asker.asks(chat, [chat_tokens(chat.messages, chat.tools)], lora, name, None)

        def answer(write: Callable[[bytes], None], done: Callable[[], None]) -> Hear:
            return MessageAnswer(name, body.model, asks[0], body, write=write, done=done).hear

        return self._streamed(asks, answer) if body.stream else self._whole(asks, answer)

    def _count_messages(self, request: Request) -> Response:
        body = read(request, Messages, fields.COUNTED_MESSAGES)
        self._adapters.lora_of(body.model)
        chat = body.chat()
        refuse_chat(chat)
        return _ok(messages.counted(len(chat_tokens(chat.messages, chat.tools))))

    def _respond(self, request: Request) -> Response | Awaitable[Response]:
        body = read(request, Respond, fields.RESPONSE)
        body.refuse_shape()
        lora = self._known(body.model)
        body.refuse_stored()
        chat = body.chat()
        refuse_chat(chat)
        refuse_range(chat)
        name = new_id("resp", body.request_id or request.headers.get("x-request-id")).replace("-", "_", 1)
        asks = self._asker.asks(chat, [chat_tokens(chat.messages, chat.tools)], lora, name, None)

        def answer(write: Callable[[bytes], None], done: Callable[[], None]) -> Hear:
            model = body.model or self._settings.names[0]
            return ResponseAnswer(name, model, asks[0], body, write=write, done=done).hear

        return self._streamed(asks, answer) if body.stream else self._whole(asks, answer)

    def _streamed(self, asks: list[Ask], answer: NewAnswer, transfer: dict[str, Any] | None = None) -> Response:
        return Response(
            body=lambda sink: self._stream(sink, asks, answer, transfer),
            content_type="text/event-stream; charset=utf-8",
        )

    def _stream(self, sink: Sink, asks: list[Ask], answer: NewAnswer, transfer: dict[str, Any] | None) -> None:
        try:
            self._submit(asks, answer(sink.write, sink.close), transfer)
        except AskError as error:
            sink.write(b"data: " + error_body(str(error), "BadRequestError", 400) + b"\n\n")
            sink.close()
            return
        sink.on_close(lambda: self._abort(asks))

    async def _whole(self, asks: list[Ask], answer: NewAnswer, transfer: dict[str, Any] | None = None) -> Response:
        written = bytearray()
        done = asyncio.Event()
        try:
            self._submit(asks, answer(written.extend, done.set), transfer)
        except AskError as error:
            return _refused(error)
        try:
            await done.wait()
        finally:
            self._abort(asks)  # of what has ended nothing is left; the rest belongs to a client that went
        return Response(body=bytes(written))

    def _submit(
        self, asks: list[Ask], hear: Callable[[Happening], None], transfer: dict[str, Any] | None = None
    ) -> None:
        """Hand all asks of a request to the engine; if it refuses one, none is left in it."""

        def heard(happening: Happening) -> None:
            self._metrics.hear(happening)
            if isinstance(happening, Ending):
                self._load -= 1
            elif happening.is_first and transfer is not None and transfer.get("do_remote_prefill"):
                self._transfers.fetched(transfer)
            hear(happening)

        for place, ask in enumerate(asks):
            try:
                self._worker.submit(ask, heard)
            except AskError:
                self._abort(asks[:place])
                raise
            self._load += 1

    def _abort(self, asks: list[Ask]) -> None:
        for ask in asks:
            if self._worker.abort(ask.id):
                self._load -= 1
                self._metrics.forget(ask.id)

    def _refuse_unready(self) -> None:
        if not self.is_ready:
            raise BadBodyError("the engine is starting", status=503, kind="ServiceUnavailableError")
        if self._is_asleep:
            raise BadBodyError("the engine is sleeping; wake it with POST /wake_up", status=503,
                               kind="ServiceUnavailableError")  # fmt: skip

    # embeddings

    async def _embed(self, request: Request) -> Response:
        try:
            body = read(request, Embedding, fields.POOLED)
            lora = self._adapters.lora_of(body.model)
            prompts = prompts_of(body.input)
            if not prompts or not all(prompts):
                raise BadBodyError("input cannot be empty", param="input")
            self._refuse_unready()
        except (BadBodyError, UnreadableError) as error:
            return _refused(error)
        name = new_id("embd", request.headers.get("x-request-id"))
        try:
            await self._all(self._pooled(name, prompts, lora))
        except AskError as error:
            return _refused(error)
        data = [{"index": number, "object": "embedding", "embedding": _embedding(prompt, body)}
                for number, prompt in enumerate(prompts)]  # fmt: skip
        tokens = sum(map(len, prompts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return _ok({"id": name, "object": "list", "model": body.model or self._settings.names[0], "data": data,
                    "usage": usage})  # fmt: skip

    async def _rerank(self, request: Request) -> Response:
        try:
            body = read(request, Rerank, fields.POOLED)
            pairs, tokens = await self._paired(request, body)
        except (BadBodyError, AskError, UnreadableError) as error:
            return _refused(error)
        return _ok(reranked(body, pairs, tokens, body.model or self._settings.names[0]))

    async def _score(self, request: Request) -> Response:
        try:
            body = read(request, Score, fields.POOLED)
            pairs, tokens = await self._paired(request, body)
        except (BadBodyError, AskError, UnreadableError) as error:
            return _refused(error)
        return _ok(scored(pairs, tokens, body.model or self._settings.names[0], int(time.time())))

    async def _paired(self, request: Request, body: Rerank | Score) -> tuple[list[tuple[str, str]], int]:
        """The pairs of a body, once the engine has read all of them, and their tokens."""
        lora = self._adapters.lora_of(body.model)
        self._refuse_unready()
        pairs = body.pairs()
        asked = prompts_of_pairs(pairs)
        await self._all(self._pooled(new_id("score", request.headers.get("x-request-id")), asked, lora))
        return pairs, sum(map(len, asked))

    def _pooled(self, name: str, prompts: list[list[int]], lora: str) -> list[Ask]:
        """Prompts that are only read."""
        size = self._settings.block_size
        return [
            Ask(id=f"{name}-{number}", prompt_tokens=len(prompt), output_tokens=1, tokens=tuple(prompt), lora=lora,
                hashes=tuple(hash_blocks(prompt, size, salt_of(lora))))
            for number, prompt in enumerate(prompts)
        ]  # fmt: skip

    async def _all(self, asks: list[Ask]) -> None:
        """Until all have ended; if the client leaves first, none is left in the engine."""
        left, done = {ask.id for ask in asks}, asyncio.Event()

        def hear(happening: Happening) -> None:
            if isinstance(happening, Ending):
                left.discard(happening.request)
                if not left:
                    done.set()

        self._submit(asks, hear)
        try:
            await done.wait()
        finally:
            self._abort(asks)

    # the rest

    def _health(self) -> Response:
        return Response(status=200 if self.is_ready else 503, content_type="")

    def _tokenize(self, request: Request) -> Response:
        body = read(request, Tokenize, fields.TOKENIZE)
        self._adapters.lora_of(body.model)
        if isinstance(body.prompt, str):
            tokens = tokenize(body.prompt)
        else:
            chat = Chat(
                messages=body.messages or [], add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
            )  # fmt: skip
            refuse_chat(chat)
            tokens = chat_tokens(chat.messages, body.tools)
        texts = [detokenize([one]) for one in tokens] if body.return_token_strs else None
        length = self._settings.max_model_len
        return _ok({"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": texts})

    def _detokenize(self, request: Request) -> Response:
        body = read(request, Detokenize, fields.DETOKENIZE)
        self._adapters.lora_of(body.model)
        return _ok({"prompt": detokenize(body.tokens)})

    def _load_lora(self, request: Request) -> Response:
        self._refuse_without_lora()
        return _text(self._adapters.load(read(request, LoraChange, fields.LOAD)))

    def _unload_lora(self, request: Request) -> Response:
        self._refuse_without_lora()
        change = read(request, LoraChange, fields.UNLOAD)
        told = self._adapters.unload(change)
        self._worker.engine.unload(change.lora_name)
        return _text(told)

    def _refuse_without_lora(self) -> None:
        if not self._settings.enable_lora:
            raise BadBodyError("LoRA is not enabled; start the engine with --enable-lora", kind="InvalidUserInput")

    def _halt(self, told: dict[str, Any], *, sleeps: bool = False) -> Response:
        self._is_asleep, self._is_paused = self._is_asleep or sleeps, True
        self._worker.pause()
        return _ok(told)

    def _go_on(self, told: dict[str, Any]) -> Response:
        self._is_asleep = self._is_paused = False
        self._worker.resume()
        return _ok(told)

    def _reset_prefix_cache(self, _request: Request) -> Response:
        self._worker.engine.forget()
        self._worker.look_again()
        return _ok({"success": True})

    def _fetched(self, path: str) -> Response:
        request = path.removeprefix("/kv_transfer/").removesuffix("/fetched")
        known = self._worker.engine.release(request)
        self._worker.look_again()
        return Response() if known else _json_response(404, {"detail": f"nothing is kept for {request}"})


def _embedding(prompt: list[int], body: Embedding) -> list[float] | str:
    """A unit vector by the prompt: equal texts are equally far from others."""
    size = body.dimensions or EMBEDDING_SIZE
    values = [((hash((number, *prompt)) >> 7) % 2001 - 1000) / 1000 for number in range(size)]
    length = sum(one * one for one in values) ** 0.5 or 1.0
    unit = [one / length for one in values]
    if body.encoding_format == "base64":
        return base64.b64encode(struct.pack(f"<{size}f", *unit)).decode()
    return unit


def _ok(document: object) -> Response:
    return Response(body=_json(document))


def _json_response(status: int, document: object) -> Response:
    return Response(status=status, body=_json(document))


def _text(text: str) -> Response:
    return Response(body=text.encode(), content_type="")


def _refused(error: BadBodyError | AskError | UnreadableError, path: str = "") -> Response:
    if isinstance(error, UnreadableError):
        return _json_response(400, {"detail": "There was an error parsing the body"})
    status, kind, param = 400, "BadRequestError", None
    if isinstance(error, BadBodyError):
        status, kind, param = error.status, error.kind, error.param
    if path.startswith("/v1/messages") and kind != MALFORMED:
        return Response(status=status, body=messages.error_body(str(error), kind))
    return Response(status=status, body=error_body(str(error), kind, status, param))
