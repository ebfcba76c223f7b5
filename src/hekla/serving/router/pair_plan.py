"""One request's way over a prefill and a decode engine: choose a pair, send both legs as the connector wants, on a fault take another.

Implements `plan.Plan`. Each attempt has bodies of its own, made from the client's, and a room or transfer of its own: what a
failed attempt left at an engine must not meet the next. `pairs.py` chooses, `connectors/` make the bodies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hekla.serving.router.backends import RANK_HEADER, Backend
from hekla.serving.router.choosing import Dice, Look
from hekla.serving.router.connectors import Connector, connector_of
from hekla.serving.router.connectors.mooncake import QUERY_PATH, MooncakeConnector
from hekla.serving.router.connectors.sequential import SequentialConnector
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.local_plan import MOST_ATTEMPTS
from hekla.serving.router.pairs import DecodeCharge, Pair, choose_decode, choose_pair
from hekla.serving.router.plan import NOBODY_READY, Attempt, Destination, Fault, Refusal, Target, Usage
from hekla.serving.router.pool import Charge, Pool
from hekla.serving.router.question import Question

MOST_KNOWN = 4096
"""Prefill engines of one backend whose bootstrap servers' answers are remembered."""


@dataclass(slots=True)
class Door:
    """Another port of an engine: its bootstrap server."""

    name: str
    host: str
    port: int
    is_tls: bool = False
    verifies: bool = False


@dataclass(frozen=True, slots=True)
class Pairing:
    """What all requests to one backend of pairs share."""

    prefill: Pool
    decode: Pool
    connector: Connector
    skip_below_tokens: int = 0
    head_timeout_s: float = 0.0
    most_attempts: int = MOST_ATTEMPTS
    retry_s: float = 0.0
    engines: dict[tuple[str, str], dict[int, str]] = field(default_factory=dict)
    """Mooncake's engine ids by rank, by host and incarnation of the prefill engine, as its bootstrap server told."""

    @classmethod
    def of(cls, backend: Backend) -> "Pairing":
        """As its ModelServer says."""
        traits = backend.traits
        return cls(
            backend.prefill,
            backend.decode,
            connector_of(traits.connector, traits.bootstrap_port),
            traits.skip_below_tokens,
            traits.head_timeout_s,
            traits.most_attempts,
            traits.retry_s,
        )


class PairPlan:
    """A plan over pairs."""

    __slots__ = (
        "_attempts",
        "_body",
        "_decode_charge",
        "_next_leg",
        "_pair",
        "_pairing",
        "_prefill_charge",
        "_question",
        "_tried",
        "destination",
    )

    def __init__(
        self, pairing: Pairing, question: Question, destination: Destination, *, body: bytes | None = None
    ) -> None:
        self.destination = destination
        self._pairing = pairing
        self._question = question
        self._body = question.body if body is None else body
        self._tried: tuple[list[Endpoint], list[Endpoint]] = ([], [])
        self._pair: Pair | None = None
        self._prefill_charge: Charge | None = None
        self._decode_charge: DecodeCharge | Charge | None = None
        self._next_leg: Attempt | None = None
        self._attempts = 0

    def next(self, now: float) -> Attempt | Refusal:
        """The next leg of the pair, or the first of the next pair."""
        leg, self._next_leg = self._next_leg, None
        if leg is not None:
            return leg
        if self._attempts >= self._pairing.most_attempts:
            return _all_failed()
        pairing = self._pairing
        looks = pairing.prefill.look(self._question, now), pairing.decode.look(self._question, now)
        alone = self._decode_alone(looks[1])
        if alone is not None:
            return alone
        self._pair = choose_pair(pairing.prefill, pairing.decode, looks, self._tried)
        if self._pair is None:
            return self._no_pair()
        self._attempts += 1
        is_leg = isinstance(pairing.connector, SequentialConnector)
        self._prefill_charge = pairing.prefill.charge(looks[0], self._pair.prefill, is_leg=is_leg)
        self._decode_charge = DecodeCharge(pairing.decode, self._pair.decode, looks[1])
        return self._first_leg(self._pair)

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        """Take the counts back; the engine that failed sits out, and this pair is not tried again."""
        pair, self._pair, self._next_leg = self._pair, None, None
        self._release(now)
        if pair is None:
            self._fault(self._pairing.decode, attempt.target, fault, now)
            return
        self._tried[0].append(pair.prefill)
        if attempt.on_answer is None:
            self._tried[1].append(pair.decode)
        if attempt.target is not pair.decode:
            self._fault(self._pairing.prefill, pair.prefill, fault, now)
        else:
            self._fault(self._pairing.decode, pair.decode, fault, now)

    def first_byte(self, now: float) -> None:
        """The answer began."""
        if self._prefill_charge is not None:
            self._prefill_charge.first_byte(now)
            self._prefill_charge.end(now)
            self._prefill_charge = None
        if isinstance(self._decode_charge, Charge):
            self._decode_charge.first_byte(now)
        elif self._decode_charge is not None:
            self._decode_charge.endpoint.answered(now)

    def ended(self, usage: Usage | None, now: float) -> None:
        """Learn how long answers are, and take the counts back."""
        if usage is not None:
            self._pairing.decode.pace.ended(0, usage.input_tokens, usage.output_tokens, 0.0)
        self._release(now)

    def _first_leg(self, pair: Pair) -> Attempt:
        connector, path = self._pairing.connector, self._question.path
        if isinstance(connector, SequentialConnector):
            return self._leg(pair.prefill, connector.prefill(self._body, path), takes=self._prefilled)
        if isinstance(connector, MooncakeConnector):
            known = self._pairing.engines.get((pair.prefill.host, pair.prefill.incarnation))
            return self._transfer(pair, connector, known) if known else self._query(pair, connector)
        sent, got = connector.legs(self._body, path, pair.prefill.host, _room(pair.prefill_look.dice))
        return self._leg(pair.decode, got, beside=self._leg(pair.prefill, sent))

    def _prefilled(self, answer: bytes, now: float) -> None:
        """Prefill is done: decode is next."""
        pair, connector = self._pair, self._pairing.connector
        if pair is None or not isinstance(connector, SequentialConnector):
            return
        if self._prefill_charge is not None:
            self._prefill_charge.first_byte(now)
            self._prefill_charge.end(now)
            self._prefill_charge = None
        self._next_leg = self._leg(pair.decode, connector.decode(self._body, answer))

    def _query(self, pair: Pair, connector: MooncakeConnector) -> Attempt:
        door = Door(f"{pair.prefill.name}:{connector.bootstrap_port}", pair.prefill.host, connector.bootstrap_port)

        def told(answer: bytes, now: float) -> None:
            engines, known = connector.engines(answer), self._pairing.engines
            if len(known) >= MOST_KNOWN:
                known.clear()
            if engines:
                known[pair.prefill.host, pair.prefill.incarnation] = engines
                self._next_leg = self._transfer(pair, connector, engines)
            else:
                self.failed(Attempt(door, on_answer=told), Fault.GARBAGE, now)

        return Attempt(door, b"", QUERY_PATH, (), self._pairing.head_timeout_s, told, method=b"GET")

    def _transfer(self, pair: Pair, connector: MooncakeConnector, engines: dict[int, str]) -> Attempt:
        ranks, chosen = sorted(engines), pair.prefill.rank
        rank = chosen if chosen in engines else ranks[int(pair.prefill_look.dice() * len(ranks))]
        transfer_id = f"xfer-{_room(pair.prefill_look.dice):016x}{_room(pair.prefill_look.dice):016x}"
        sent, got = connector.legs(self._body, self._question.path, pair.prefill.host, engines[rank], transfer_id)
        beside = self._leg(pair.prefill, sent)
        beside.headers = ((RANK_HEADER, str(rank).encode()),)
        return self._leg(pair.decode, got, beside=beside)

    def _decode_alone(self, look: Look) -> Attempt | None:
        """A prompt that is short, or cached where it would be decoded, is not worth a transfer."""
        pairing = self._pairing
        if not pairing.skip_below_tokens or self._attempts >= self._pairing.most_attempts:
            return None
        candidates = pairing.decode.candidates(look.now, self._tried[1])
        short = [one for one in candidates if look.tokens - look.matched[one.slot] < pairing.skip_below_tokens]
        chosen = choose_decode(pairing.decode, look, short)
        if chosen is None:
            return None
        self._attempts += 1
        self._tried[1].append(chosen)
        self._decode_charge = pairing.decode.charge(look, chosen)
        return self._leg(chosen, self._body)

    def _leg(
        self,
        target: Target,
        body: bytes,
        *,
        takes: Callable[[bytes, float], None] | None = None,
        beside: Attempt | None = None,
    ) -> Attempt:
        own, headers = None if body is self._question.body else body, getattr(target, "headers", ())
        return Attempt(
            target,
            own,
            None,
            headers,
            self._pairing.head_timeout_s,
            takes,
            beside=beside,
            retry_s=self._pairing.retry_s,
        )

    def _release(self, now: float) -> None:
        for charge in (self._prefill_charge, self._decode_charge):
            if charge is not None:
                charge.end(now)
        self._prefill_charge = self._decode_charge = None

    def _fault(self, pool: Pool, target: Target, fault: Fault, now: float) -> None:
        if isinstance(target, Endpoint):
            pool.fault(target, now, is_busy=fault is Fault.BUSY)

    def _no_pair(self) -> Refusal:
        if self._attempts:
            return _all_failed()
        pairing = self._pairing
        if not pairing.prefill.members or not pairing.decode.members:
            said = f"no available pods for model server: {pairing.decode.name}{pairing.decode.absence}"
            return Refusal(503, "pod_discovery", NOBODY_READY, retry_after_s=1.0, detail=said)
        said = "can't schedule to target pod: no prefill and decode pods of one group passed the filters"
        return Refusal(503, "scheduling", said, retry_after_s=1.0)


def _all_failed() -> Refusal:
    return Refusal(500, "proxy", "all prefill/decode attempts failed")


def _room(dice: Dice) -> int:
    """63 random bits."""
    return (int(dice() * 2**32) << 31) | int(dice() * 2**31)
