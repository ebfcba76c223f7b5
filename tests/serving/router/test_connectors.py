"""Whether the bodies of prefill and decode legs are what engines expect, to the byte where bytes matter (spec 2.8, 8.5 to 8.7)."""

from typing import Any

import msgspec
import pytest

from hekla.serving.router.connectors import connector_of
from hekla.serving.router.connectors.mooncake import MooncakeConnector
from hekla.serving.router.connectors.sequential import SequentialConnector
from hekla.serving.router.connectors.sglang import SglangConnector

CHAT = "/v1/chat/completions"
BODY = (
    b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9"}],"stream":true,"stream_options":{"include_usage":true},'
    b'"max_tokens":64,"min_tokens":4,"temperature":0.10}'
)


def decoded(body: bytes) -> Any:
    return msgspec.json.decode(body)


def sequential(name: str) -> SequentialConnector:
    made = connector_of(name, 0)
    assert isinstance(made, SequentialConnector)
    return made


@pytest.mark.parametrize("name", ["http", "lmcache"])
def test_a_shared_store_needs_one_token_of_prefill_and_the_clients_own_decode(name: str) -> None:
    """Kthena TestBuildPrefillRequest, TestBuildDecodeRequest."""
    made = sequential(name)
    assert made.prefill(BODY, CHAT) == (
        b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9"}],"max_tokens":1,"temperature":0.10}'
    )
    assert made.decode(BODY, b'{"kv_transfer_params":{"remote_host":"x"}}') is BODY


def test_the_newer_name_of_the_bound_is_bounded_too() -> None:
    body = b'{"model":"m","prompt":"p","max_completion_tokens":9,"min_completion_tokens":2}'
    assert decoded(sequential("http").prefill(body, CHAT)) == {
        "model": "m",
        "prompt": "p",
        "max_tokens": 1,
        "max_completion_tokens": 1,
    }
    assert decoded(sequential("http").prefill(b'{"model":"m","input":"p"}', "/v1/responses"))["max_output_tokens"] == 1


@pytest.mark.parametrize("name", ["nixl", "mooncake"])
def test_nixl_is_told_to_keep_the_blocks_and_decode_gets_what_prefill_answered_unchanged(name: str) -> None:
    """Kthena TestNIXLConnectorProxy, TestNIXLConnectorReqBodyNotMutated."""
    made, before = sequential(name), bytes(BODY)
    prefill = decoded(made.prefill(BODY, CHAT))
    assert prefill["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert not {"stream", "stream_options", "min_tokens"} & prefill.keys()
    params = b'{"do_remote_prefill":true,"remote_block_ids":[1,2],"remote_port":5600,"x":1.50}'
    decode = made.decode(BODY, b'{"id":"1","choices":[],"kv_transfer_params":' + params + b"}")
    assert decode == BODY[:-1] + b',"kv_transfer_params":' + params + b"}"
    assert before == BODY


@pytest.mark.parametrize("answer", [b"{}", b'{"kv_transfer_params":null}', b"not json", b"[]"])
def test_without_parameters_decode_prefills_by_itself(answer: bytes) -> None:
    assert sequential("nixl").decode(BODY, answer) is BODY


def test_sglang_meets_in_a_room_at_the_prefill_engine() -> None:
    made = connector_of("sglang", 0)
    assert isinstance(made, SglangConnector)
    prefill, decode = made.legs(BODY, CHAT, "10.0.0.7", 42)
    meeting = {"bootstrap_room": 42, "bootstrap_host": "10.0.0.7", "bootstrap_port": None}
    assert decoded(decode) == decoded(BODY) | meeting
    assert decoded(prefill) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hé"}],
        "max_tokens": 1,
        "temperature": 0.1,
        **meeting,
    }


def test_each_prompt_of_a_batch_has_a_room_of_its_own() -> None:
    made = SglangConnector(8998)
    _, decode = made.legs(b'{"model":"m","prompt":["a","b"]}', "/v1/completions", "10.0.0.7", 2**63 - 1)
    assert decoded(decode)["bootstrap_room"] == [2**63 - 1, 0]
    assert decoded(decode)["bootstrap_host"] == ["10.0.0.7"] * 2
    assert decoded(decode)["bootstrap_port"] == [8998] * 2
    _, ids = made.legs(b'{"model":"m","prompt":[1,2,3]}', "/v1/completions", "h", 5)
    assert decoded(ids)["bootstrap_room"] == 5


def test_vllms_own_mooncake_names_engine_and_transfer_on_both_legs() -> None:
    made = connector_of("mooncake", 8998)
    assert isinstance(made, MooncakeConnector)
    assert made.engines(b'{"0":{"engine_id":"e0"},"1":{"engine_id":"e1"}}') == {0: "e0", 1: "e1"}
    assert made.engines(b"not json") == made.engines(b'{"x":{"engine_id":"e"}}') == {}
    prefill, decode = made.legs(BODY, CHAT, "fd00::1", "e1", "xfer-1")
    assert decoded(prefill)["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-1",
    }
    assert decoded(decode)["kv_transfer_params"] == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": "http://[fd00::1]:8998",
        "remote_engine_id": "e1",
        "transfer_id": "xfer-1",
    }
    assert decoded(decode)["max_tokens"] == 64
