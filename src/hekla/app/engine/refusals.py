"""What vLLM refuses of a body whose fields are well formed: values out of range, and fields that do not go together.

The sentences are those of vLLM 0.32, and so is whether a refusal names its parameter.
"""

import math
from typing import Any

from hekla.app.engine.bodies import Chat, Completion, Sampling
from hekla.app.engine.checking import BadBodyError, parameter
from hekla.simulation.engine.tokens import VOCABULARY

MOST_LOGPROBS = 20
MOST_CHOICES = 16_384
_PENALTY = (-2.0, 2.0)


def refuse_shape(body: Chat | Completion) -> None:
    """Fields that do not go together: said before the model is looked for."""
    if body.stream_options is not None and not body.stream:
        raise parameter("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.cache_salt == "":
        raise parameter("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if isinstance(body, Chat):
        _refuse_chat(body)
    else:
        _refuse_completion(body)
    if body.use_beam_search and body.stream:
        raise BadBodyError("Streaming is not currently supported with beam search")


def _refuse_completion(body: Completion) -> None:
    if body.prompt_embeds:
        raise parameter("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", "prompt_embeds")
    if not body.prompt and not isinstance(body.prompt, list):
        raise parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if body.suffix:
        raise BadBodyError("suffix is only supported for models with FIM completion rendering", param="suffix")


def _refuse_chat(body: Chat) -> None:
    top = body.top_logprobs
    if top is not None and top < 0 and top != -1:
        raise parameter("`top_logprobs` must be a positive value or -1.", "top_logprobs", top)
    if top and not body.logprobs:
        raise parameter("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if body.tools is not None and not body.tools:
        raise parameter(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )
    _refuse_choice(body)
    shape = body.response_format or {}
    if shape.get("type") == "json_schema" and not shape.get("json_schema"):
        said = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise parameter(said, "response_format")


def _refuse_choice(body: Chat) -> None:
    choice = body.tool_choice
    if choice is None or choice == "none":
        return
    if not body.tools:
        raise parameter("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, str):
        if choice not in ("auto", "required"):
            said = f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
            raise parameter(said, "tool_choice")
        return
    if name_of(choice) not in [name_of(tool) for tool in body.tools]:
        said = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise parameter(said, "tool_choice")


def name_of(tool: Any) -> str:
    """The name of a tool, or of a choice of one; empty of what has none."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def refuse_chat(body: Chat) -> None:
    """What a chat cannot be rendered for: said once the model is known."""
    if body.chat_template:
        raise BadBodyError(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with "
            "untrusted chat template."
        )
    if not body.messages:
        raise BadBodyError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    if body.continue_final_message and body.add_generation_prompt:
        raise BadBodyError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def refuse_range(body: Sampling) -> None:  # a row of rules, in vLLM's order
    """Values out of range."""
    if body.n < 1:
        raise BadBodyError(f"n must be at least 1, got {body.n}.")
    if body.n > MOST_CHOICES:
        raise BadBodyError(
            f"n must be at most {MOST_CHOICES}, got {body.n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
            "environment variable."
        )
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(body, name)
        if not _PENALTY[0] <= value <= _PENALTY[1]:
            raise BadBodyError(f"{name} must be in [-2, 2], got {value}.")
    if body.repetition_penalty <= 0:
        raise BadBodyError(f"repetition_penalty must be greater than zero, got {body.repetition_penalty}.")
    hot = body.temperature
    if not math.isfinite(hot):
        raise parameter(f"temperature must be a finite number, got {hot}.", "temperature", hot)
    if hot < 0:
        raise parameter(f"temperature must be non-negative, got {hot}.", "temperature", hot)
    if hot > 2:
        raise parameter(f"temperature must be in [0, 2], got {hot}.", "temperature", hot)
    if not 0 < body.top_p <= 1:
        raise parameter(f"top_p must be in (0, 1], got {body.top_p}.", "top_p", body.top_p)
    if body.top_k < -1:
        raise BadBodyError(f"top_k must be 0 (disable), or at least 1, got {body.top_k}.")
    if not 0 <= body.min_p <= 1:
        raise BadBodyError(f"min_p must be in [0, 1], got {body.min_p}.")
    if body.min_tokens < 0:
        raise BadBodyError(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if "" in body.stops:
        raise BadBodyError("stop cannot contain an empty string.")
    if "" in body.bad_words:
        raise BadBodyError(f"bad_words cannot contain an empty string. Got bad_words={body.bad_words}")
    if hot == 0 and body.n > 1:
        raise BadBodyError(f"n must be 1 when using greedy sampling, got {body.n}.")
    if body.allowed_token_ids is not None and not body.allowed_token_ids:
        raise parameter("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
    _refuse_bias(body)
    _refuse_logprobs(body)


def _refuse_bias(body: Sampling) -> None:
    bias = body.logit_bias or {}
    wrong = [key for key in bias if not key.lstrip("-").isdigit()]
    if wrong:
        said = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
        raise parameter(said, "logit_bias", wrong)
    outside = [int(key) for key in bias if not 0 <= int(key) < VOCABULARY]
    if outside:
        said = f"token_id(s) {outside} in logit_bias contain out-of-vocab token ids. Vocabulary size: {VOCABULARY}"
        raise parameter(said, "logit_bias", outside)


def _refuse_logprobs(body: Sampling) -> None:
    asked = body.shown_logprobs
    asked = VOCABULARY if asked is not None and asked < 0 else asked  # all
    if asked is not None and asked > MOST_LOGPROBS:
        said = f"Requested sample logprobs of {asked}, which is greater than max allowed: {MOST_LOGPROBS}"
        raise parameter(said, "logprobs", asked)
