"""What an engine is asked for a body: prompts, lengths and choices, by the limits of one engine."""

from collections.abc import Sequence

import msgspec

from hekla.app.engine.bodies import Completion, Sampling
from hekla.app.engine.checking import BadBodyError, parameter
from hekla.app.engine.prescribed import prescribed, script_of
from hekla.app.engine.stops import first_stop
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import VOCABULARY, hash_blocks, natural_length, salt_of


class Asker:
    """Turns bodies into asks, by the limits of one engine."""

    def __init__(self, *, max_model_len: int, block_size: int, mean_output_tokens: int) -> None:
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._mean = mean_output_tokens

    def asks(
        self, body: Sampling, prompts: Sequence[list[int]], lora: str, name: str, default: int | None
    ) -> list[Ask]:
        """One ask for each prompt and choice. Raises BadBodyError."""
        if not all(prompts):
            raise BadBodyError("The decoder prompt cannot be empty")
        for token in (token for prompt in prompts for token in prompt if token >= VOCABULARY):
            raise BadBodyError(f"Token id {token} is out of vocabulary")
        text = prescribed(body)
        script = script_of(text) if text is not None else ()
        return [self._ask(body, prompt, lora, f"{name}-{number}" if number else name, default, script)
                for number, prompt in enumerate(prompt for prompt in prompts for _ in range(body.n))]  # fmt: skip

    def _ask(
        self, body: Sampling, prompt: list[int], lora: str, name: str, default: int | None, script: tuple[int, ...]
    ) -> Ask:
        length, by_itself = self._length(body, prompt, default, script)
        transfer = body.kv_transfer_params or {}
        ask = Ask(
            id=name,
            prompt_tokens=len(prompt),
            output_tokens=length,
            hashes=tuple(hash_blocks(prompt, self._block_size, salt_of(lora, body.cache_salt or ""))),
            tokens=tuple(prompt),
            script=script,
            lora=lora,
            ends_by_itself=by_itself,
            is_remote=bool(transfer.get("do_remote_prefill")),
            is_kept=bool(transfer.get("do_remote_decode")),
        )
        stop = first_stop(body, ask)
        return ask if stop is None else msgspec.structs.replace(ask, output_tokens=stop.tokens, ends_by_itself=True)

    def _length(
        self, body: Sampling, prompt: list[int], default: int | None, script: tuple[int, ...]
    ) -> tuple[int, bool]:
        """How long the answer is, and whether it ends by itself."""
        longest, (name, asked) = self._max_model_len, body.limit
        if asked == 0 and isinstance(body, Completion) and body.echo:
            asked = 1  # it is made, and not shown
        if asked is not None and asked > longest:
            raise parameter(
                f"{name}={asked} cannot be greater than max_model_len={longest}. Please request fewer output tokens.",
                name, asked,
            )  # fmt: skip
        if len(prompt) > longest:
            raise self._too_long(body, len(prompt))
        if asked is not None and asked < 1:
            raise parameter(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
        if len(prompt) == longest:
            raise parameter("max_tokens must be at least 1, got 0.", "max_tokens", 0)
        if asked is not None and body.min_tokens > asked:
            raise BadBodyError(f"min_tokens must be less than or equal to max_tokens={asked}, got {body.min_tokens}.")
        most = min(asked or default or longest, longest - len(prompt))  # what is too much is cut, as vLLM does
        if script:  # whose grammar ends it, whatever else is wished
            return (most, False) if len(script) > most else (len(script), True)
        natural = max(body.min_tokens, natural_length(prompt, self._mean))
        return (most, False) if body.ignore_eos or natural >= most else (natural, True)

    def _too_long(self, body: Sampling, found: int) -> BadBodyError:
        """Of a text vLLM reads no more tokens than it takes to know that they are too many."""
        longest = self._max_model_len
        is_text = not isinstance(body, Completion) or isinstance(body.prompt, str)
        most = min(found, longest + 1) if is_text else found
        return parameter(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains "
            f"{'at least ' if is_text else ''}{most} input tokens, which exceeds this limit even without any output tokens. "
            f"Please reduce the length of the input prompt.",
            "input_tokens", most,
        )  # fmt: skip
