"""Pools, questions and dice for tests: small, and the same every time."""

from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.blocks import BLOCK_BYTES
from hekla.serving.router.question import Question


def no_dice():
    return 0.0


def pool_of(count=3, policy=None, *, fleet=None, dice=no_dice, **more):
    """A pool of endpoints e0, e1, ..."""
    pool = Pool("ns/model", fleet or Fleet(), policy or Soonest(), dice, **more)
    for number in range(count):
        pool.join(endpoint(f"e{number}"))
    return pool


def endpoint(name, **more):
    return Endpoint(name, "127.0.0.1", 8000, namespace="ns", **more)


def prompt(*blocks):
    """A prompt of whole blocks: equal names, equal blocks."""
    return b"".join((f"{one} " * BLOCK_BYTES).encode()[:BLOCK_BYTES] for one in blocks)


def question(*blocks, tokens=None, model="m", **more):
    """A question whose prompt is made of blocks."""
    body = prompt(*(blocks or ("x",)))
    return Question("/v1/chat/completions", model, body, tokens if tokens is not None else len(body) // 4, **more)


def counts(one):
    """All that is counted on an endpoint."""
    return one.in_flight, one.prefill_tokens, one.context_tokens, one.decode_tokens
