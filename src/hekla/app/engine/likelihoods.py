"""How likely each token of an answer was, in OpenAI's two shapes. The numbers mean nothing: there is no model."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from hekla.app.engine.bodies import Chat, Sampling
from hekla.simulation.engine.tokens import WORDS, detokenize

LIKELY, LESS = -0.25, -1.0
"""Natural logarithms: of the token that was written, and by how much each further one is less likely."""


class Likelihoods:
    """Of one answer, as it grows."""

    def __init__(self, body: Sampling) -> None:
        self._count = body.shown_logprobs
        self._is_chat = isinstance(body, Chat)
        self._offset = 0

    def of(self, tokens: Iterable[int]) -> dict[str, Any] | None:
        """What stands beside these tokens; None where the request asks for none."""
        if self._count is None:
            return None
        texts = [detokenize([token]) for token in tokens]
        if self._is_chat:
            return {"content": [self._shown(text) for text in texts]}
        return self._row(texts)

    def _shown(self, text: str) -> dict[str, Any]:
        return {**_entry(text, LIKELY), "top_logprobs": [_entry(one, value) for one, value in self._top(text)]}

    def _row(self, texts: list[str]) -> dict[str, Any]:
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        top = [dict(self._top(text)) or {text: LIKELY} for text in texts]
        return {"text_offset": offsets, "token_logprobs": [LIKELY] * len(texts), "tokens": texts, "top_logprobs": top}

    def _top(self, text: str) -> list[tuple[str, float]]:
        """The token itself, and others."""
        count = self._count or 0
        others = (word for word in map(bytes.decode, WORDS) if word != text)
        return list(zip([text, *islice(others, count)], (LIKELY + LESS * at for at in range(count)), strict=False))


def _entry(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode())}
