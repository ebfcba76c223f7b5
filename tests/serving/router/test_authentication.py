"""Who asks: a key of ours, a believed token, or nobody; and keys that change while requests wait."""

import asyncio
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from hekla.edge import key_fetching
from hekla.edge.bearer import Expected, KeySet
from hekla.edge.key_fetching import KeyFetcher
from hekla.serving.router.authentication import ApiKeyError, Authentication, read_api_keys
from hekla.serving.router.question import Question
from hekla.wire.errors import ConnectFailedError
from hekla.wire.messages import Response

NOW = 1_700_000_000.0
KEY = "sk-0123456789abcdef"
SIGNING = ec.generate_private_key(ec.SECP256R1())


def ask(**headers):
    return Question(
        path="/v1/x",
        model="llama",
        prompt=b"",
        input_tokens=1,
        headers={k.replace("_", "-"): v for k, v in headers.items()},
    )


def bearer(secret):
    return ask(authorization=f"Bearer {secret}")


def jwks(key_id="k1"):
    document = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(SIGNING.public_key()))
    return json.dumps({"keys": [{**document, "kid": key_id}]}).encode()


def token(user="ann", key_id="k1", life_s=600):
    body = {"iss": "https://issuer", "sub": user, "exp": NOW + life_s}
    return jwt.encode(body, SIGNING, "ES256", headers={"kid": key_id})


class HeldKeys:
    """An issuer whose answer comes when the test says so."""

    def __init__(self, keys=None):
        self.keys = keys
        self.waiting = []

    def current(self):
        return self.keys

    def refresh(self, then):
        self.waiting.append(then)
        return self

    def abandon(self):
        self.waiting.clear()

    def answer(self, keys):
        self.keys = keys
        waiting, self.waiting = self.waiting, []
        for then in waiting:
            then()


def guard(keys=None, wall=lambda: NOW):
    return Authentication(
        wall=wall,
        api_keys=read_api_keys({"ann": KEY}),
        expected=Expected("https://issuer"),
        keys=keys or HeldKeys(KeySet.parse(jwks())),
    )


@pytest.mark.parametrize("question", [bearer(KEY), ask(authorization=f"bearer  {KEY} "), ask(x_api_key=KEY)])
def test_an_api_key_names_its_user(question):
    assert guard().admit(question, 0.0) is None
    assert question.user == "ann"


@pytest.mark.parametrize(
    "question", [ask(), ask(authorization="Basic abc"), ask(authorization="Bearer "), bearer("sk-wrong")]
)
def test_nobody_gets_in_without_one(question):
    refusal = guard().admit(question, 0.0)
    assert (refusal.status, refusal.reason) == (401, "authentication")
    assert question.user == ""


def test_a_key_that_is_taken_off_the_list_does_not_open():
    door = guard()
    door.set_api_keys({})
    assert door.admit(bearer(KEY), 0.0).message == "the API key is not known"


def test_a_believed_token_names_its_subject_until_it_expires():
    wall = [NOW]
    door = guard(wall=lambda: wall[0])
    question = bearer(token("bob"))
    assert door.admit(question, 0.0) is None
    assert question.user == "bob"
    wall[0] += 601
    assert door.admit(question, 601.0).message == "the token has expired"


def test_a_remembered_token_costs_no_second_signature(monkeypatch):
    door, question = guard(), bearer(token())
    assert door.admit(question, 0.0) is None
    monkeypatch.setattr("hekla.serving.router.authentication.verify", None)
    assert door.admit(question, 0.0) is None


def test_a_token_of_an_unknown_key_waits_for_the_issuers_new_keys():
    keys = HeldKeys(KeySet.parse(jwks("old")))
    door, question, told = guard(keys), bearer(token("bob", key_id="new")), []
    door.admit(question, 0.0).when_ready(told.append)
    keys.answer(KeySet.parse(jwks("new")))
    assert told == [None]
    assert question.user == "bob"


def test_a_key_that_the_issuer_does_not_have_is_refused_after_one_look():
    keys, told = HeldKeys(KeySet.parse(jwks("old"))), []
    guard(keys).admit(bearer(token(key_id="made-up")), 0.0).when_ready(told.append)
    keys.answer(KeySet.parse(jwks("old")))
    (refusal,) = told
    assert refusal.status == 401
    assert "made-up" in refusal.message


def test_without_any_keys_a_token_is_told_to_come_again():
    keys, told = HeldKeys(), []
    guard(keys).admit(bearer(token()), 0.0).when_ready(told.append)
    keys.answer(None)
    assert told[0].status == 503


def test_who_leaves_while_keys_are_fetched_is_not_called():
    keys, told = HeldKeys(), []
    held = guard(keys).admit(bearer(token()), 0.0)
    held.when_ready(told.append)
    held.abandon()
    keys.answer(KeySet.parse(jwks()))
    assert told == []


def test_tokens_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("hekla.serving.router.authentication.MOST_REMEMBERED", 3)
    door = guard()
    for number in range(10):
        assert door.admit(bearer(token(f"u{number}")), 0.0) is None
    assert len(door._believed) == 3


def test_short_and_shared_keys_are_refused_without_showing_them():
    with pytest.raises(ApiKeyError, match='"ann" has 5 characters'):
        read_api_keys({"ann": "short"})
    with pytest.raises(ApiKeyError, match="same API key") as error:
        read_api_keys({"ann": KEY, "bob": KEY})
    assert KEY not in str(error.value)


class Issuer:
    """Answers what it is told to, and counts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = asyncio.Queue()
        self.gate = asyncio.Semaphore(0)

    async def request(self, method, url, timeout_s):
        self.asked.put_nowait(url)
        await self.gate.acquire()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Response(*answer)


def test_who_waits_is_told_whatever_comes_of_it_and_keys_outlive_a_fault(monkeypatch):
    async def story():
        issuer = Issuer((200, jwks()), (500, b""), ConnectFailedError("gone"))
        now, told = [0.0], []
        fetcher = KeyFetcher("https://issuer/keys", issuer, lambda: now[0])
        running = asyncio.create_task(fetcher.run())
        await issuer.asked.get()
        assert fetcher.refresh(lambda: told.append(1)) is not None  # joins the one under way
        issuer.gate.release()
        while not told:
            await asyncio.sleep(0)
        assert fetcher.refresh(lambda: told.append(2)) is None  # asked a moment ago
        now[0] = 6.0
        for number in (3, 4):
            assert fetcher.refresh(lambda number=number: told.append(number)) is not None
            await issuer.asked.get()
            issuer.gate.release()
            while told[-1] != number:
                await asyncio.sleep(0)
            now[0] += 6.0
        assert len(fetcher.current()) == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


def test_a_flood_of_made_up_keys_is_bounded(monkeypatch):
    monkeypatch.setattr(key_fetching, "MOST_WAITING", 2)

    async def story():
        fetcher = KeyFetcher("https://issuer/keys", Issuer(), lambda: 0.0)
        tickets = [fetcher.refresh(lambda: None) for _ in range(4)]
        assert [one is not None for one in tickets] == [True, True, False, False]

    asyncio.run(story())
