"""Pairs of texts and how well they go together: vLLM's rerank and score, with the share of common words in place of a model.

Each pair is one prompt of the engine's, so that it takes the time and the cache that it would.
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from hekla.app.engine.bodies import new_id
from hekla.app.engine.checking import BadBodyError
from hekla.simulation.engine.tokens import tokenize

_WORD = re.compile(r"\w+")
Texts = str | list[str]


class Piece(Struct):
    """A document that is more than its text."""

    text: str


class Rerank(Struct, kw_only=True):
    """POST /rerank, /v1/rerank and /v2/rerank."""

    query: str
    documents: list[str | Piece]
    model: str | None = None
    top_n: int = 0

    def pairs(self) -> list[tuple[str, str]]:
        """The query with each document. Raises BadBodyError."""
        if not self.documents:
            raise BadBodyError("At least one text element must be given", param="documents")
        return [(self.query, _text_of(one)) for one in self.documents]


class Score(Struct, kw_only=True):
    """POST /score and /v1/score, in either of vLLM's spellings."""

    text_1: Texts | UnsetType = UNSET
    text_2: Texts | UnsetType = UNSET
    queries: Texts | UnsetType = UNSET
    documents: Texts | UnsetType = UNSET
    model: str | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """One with each, or each with its own. Raises BadBodyError."""
        first, second = (
            [text] if isinstance(text, str) else text
            for text in (self._either(self.text_1, self.queries), self._either(self.text_2, self.documents))
        )
        if len(first) not in (1, len(second)) or not second:
            raise BadBodyError("Input lengths must be either 1:1, 1:N or N:N", param="text_1")
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    @staticmethod
    def _either(one: Texts | UnsetType, other: Texts | UnsetType) -> Texts:
        if not isinstance(one, UnsetType):
            return one
        if isinstance(other, UnsetType):
            raise BadBodyError("text_1 and text_2, or queries and documents, must be given", param="text_1")
        return other


def prompts_of_pairs(pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """What the engine computes for each pair; the common query comes first, and is cached."""
    return [tokenize(f"{query}\n{text}") for query, text in pairs]


def likeness(pair: tuple[str, str]) -> float:
    """The share of the query's words that the text has, a little less the longer the text: 0 to 1."""
    asked, found = ({word.lower() for word in _WORD.findall(text)} for text in pair)
    if not asked or not found:
        return 0.0
    return len(asked & found) / len(asked) * (0.9 + 0.1 * len(asked & found) / len(found))


def reranked(body: Rerank, pairs: Sequence[tuple[str, str]], tokens: int, model: str) -> dict[str, Any]:
    """The best first."""
    found = sorted(((likeness(pair), -at) for at, pair in enumerate(pairs)), reverse=True)
    results = [
        {"index": -at, "document": {"text": pairs[-at][1], "multi_modal": None}, "relevance_score": score}
        for score, at in found[: body.top_n or len(found)]
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": new_id("rerank", None), "model": model, "usage": usage, "results": results}


def scored(pairs: Sequence[tuple[str, str]], tokens: int, model: str, created: int) -> dict[str, Any]:
    """In the order asked."""
    data = [{"index": at, "object": "score", "score": likeness(pair)} for at, pair in enumerate(pairs)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    return {
        "id": new_id("score", None), "object": "list", "created": created, "model": model, "data": data, "usage": usage,
    }  # fmt: skip


def _text_of(one: str | Piece) -> str:
    return one if isinstance(one, str) else one.text
