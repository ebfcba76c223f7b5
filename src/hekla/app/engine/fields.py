"""The fields of vLLM's bodies and what may stand in them, in vLLM's order: `checking.py` reads bodies by these tables."""

from hekla.app.engine.checking import (
    Check,
    Taken,
    Trouble,
    a_list,
    a_model,
    either,
    flag,
    mapping,
    natural,
    number,
    one_of,
    text,
    whole,
)

CHAT_ROLES = (
    ("ChatCompletionDeveloperMessageParam", "developer"),
    ("ChatCompletionSystemMessageParam", "system"),
    ("ChatCompletionUserMessageParam", "user"),
    ("ChatCompletionAssistantMessageParam", "assistant"),
    ("ChatCompletionToolMessageParam", "tool"),
    ("ChatCompletionFunctionMessageParam", "function"),
    ("CustomChatCompletionMessageParam", ""),
)
"""What vLLM takes a message for, one after the other; the last is a message of any role."""

_STREAM_OPTIONS = a_model({"include_usage": flag, "continuous_usage_stats": flag})
_TOOL = a_model({"type": text, "function": a_model({"name": text, "parameters": mapping}, ("name",))}, ("function",))
_FORMAT = either(
    a_model({"type": one_of("text", "json_object", "json_schema")}, ("type",)),
    a_model({"type": one_of("structural_tag"), "format": mapping}, ("type", "format")),
    a_model(
        {"type": one_of("structural_tag"), "structures": a_list(mapping), "triggers": a_list(text)},
        ("type", "structures", "triggers"),
    ),
)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _message(value: object, place: str) -> Taken:
    """A chat message: its role is text, its content text or parts."""
    if not isinstance(value, dict):
        return Taken(None, tuple(_no_message(value, place)))
    wrong: list[Trouble] = []
    for name, role in CHAT_ROLES:
        if "role" not in value:
            wrong.append(Trouble("missing", f"{place}.{name}.role", "Field required", value))
        elif not isinstance(value["role"], str):
            wrong += one_of(role)(value["role"], f"{place}.{name}.role").troubles
    if not isinstance(value.get("content"), str | list | None) or ("content" in value and value["content"] is None and value.get("role") == "user"):  # fmt: skip
        wrong += text(value["content"], f"{place}.{CHAT_ROLES[0][0]}.content").troubles
    return Taken(value, tuple(wrong))


def _no_message(value: object, place: str) -> list[Trouble]:
    found = [
        Trouble("dict_type", f"{place}.{name}", "Input should be a valid dictionary", value) for name, _ in CHAT_ROLES
    ]
    return [*found, *a_model({})(value, f"{place}.Message").troubles]


_MESSAGES = a_list(_message)
_PROMPT = either(a_list(natural), a_list(a_list(natural)), text, a_list(text))
_PENALTIES_AND_LENGTHS: dict[str, Check] = {
    "top_k": whole, "min_p": number, "repetition_penalty": number, "length_penalty": number,
    "stop_token_ids": a_list(whole), "include_stop_str_in_output": flag, "ignore_eos": flag, "min_tokens": whole,
    "skip_special_tokens": flag, "truncate_prompt_tokens": whole, "prompt_logprobs": whole,
    "allowed_token_ids": a_list(whole), "bad_words": a_list(text), "priority": whole, "request_id": text, "cache_salt": text,
    "kv_transfer_params": mapping, "structured_outputs": mapping, "return_token_ids": flag,
}  # fmt: skip

CHAT = a_model(
    {
        "messages": _MESSAGES, "model": text, "frequency_penalty": number, "logit_bias": mapping, "logprobs": flag,
        "top_logprobs": whole, "max_tokens": whole, "max_completion_tokens": whole, "n": whole,
        "presence_penalty": number, "response_format": _FORMAT, "seed": whole, "stop": either(text, a_list(text)),
        "stream": flag, "stream_options": _STREAM_OPTIONS, "temperature": number, "top_p": number,
        "tools": a_list(_TOOL), "reasoning_effort": one_of(*_EFFORTS), "parallel_tool_calls": flag, "user": text,
        "use_beam_search": flag, "echo": flag, "add_generation_prompt": flag, "continue_final_message": flag,
        "chat_template": text, **_PENALTIES_AND_LENGTHS,
    },
    ("messages",),
)  # fmt: skip
COMPLETION = a_model(
    {
        "model": text, "prompt": _PROMPT, "echo": flag, "frequency_penalty": number, "logit_bias": mapping,
        "logprobs": whole, "max_tokens": whole, "n": whole, "presence_penalty": number, "seed": whole,
        "stop": either(text, a_list(text)), "stream": flag, "stream_options": _STREAM_OPTIONS, "suffix": text, "prompt_embeds": either(text, a_list(text)),
        "temperature": number, "top_p": number, "user": text, "use_beam_search": flag, **_PENALTIES_AND_LENGTHS,
    }
)  # fmt: skip
RESPONSE = a_model(
    {
        "background": flag, "input": either(text, a_list(mapping)), "instructions": text, "max_output_tokens": whole,
        "metadata": mapping, "model": text, "logit_bias": mapping, "parallel_tool_calls": flag,
        "previous_response_id": text, "store": flag, "stream": flag, "temperature": number, "tools": a_list(mapping),
        "top_logprobs": whole, "top_p": number, "truncation": one_of("auto", "disabled"), "user": text,
        "presence_penalty": number, "frequency_penalty": number, "seed": whole, "stop": either(text, a_list(text)),
        **_PENALTIES_AND_LENGTHS,
    },
    ("input",),
)  # fmt: skip


def _positive(value: object, place: str) -> Taken:
    taken = whole(value, place)
    if taken.troubles or taken.value > 0:
        return taken
    said = "max_tokens must be positive"
    return Taken(None, (Trouble("value_error", place, f"Value error, {said}", value, {"error": ValueError(said)}),))


MESSAGES = a_model(
    {
        "model": text, "messages": a_list(mapping), "max_tokens": _positive, "stop_sequences": a_list(text), "stream": flag,
        "temperature": number, "top_k": whole, "top_p": number, "tools": a_list(mapping),
    },
    ("model", "messages", "max_tokens"),
)  # fmt: skip
COUNTED_MESSAGES = a_model({"model": text, "messages": a_list(mapping)}, ("model", "messages"))
_OF_A_PROMPT = a_model({"model": text, "prompt": text, "return_token_strs": flag}, ("prompt",))
_OF_A_CHAT = a_model({"model": text, "messages": _MESSAGES, "return_token_strs": flag}, ("messages",))
TOKENIZE = either(_OF_A_PROMPT, _OF_A_CHAT)
DETOKENIZE = a_model({"model": text, "tokens": a_list(natural)}, ("tokens",))
LOAD = a_model({"lora_name": text, "lora_path": text, "load_inplace": flag}, ("lora_name", "lora_path"))
UNLOAD = a_model({"lora_name": text}, ("lora_name",))
POOLED = a_model({"model": text})
