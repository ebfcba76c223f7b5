"""A token whose signature was found right is not computed again, and is judged as anew in everything else."""

import base64
import hmac
import json

import jwt
import msgspec
import pytest

from hekla.sandbox.daemon.tokens import Verifier
from hekla.sandbox.gateway.minting import Mint, new_private_key
from hekla.sandbox.sessions.records import Session

NOW = 1_000_000.0


@pytest.fixture(scope="module")
def mint():
    return Mint(new_private_key())


@pytest.fixture
def verifier(mint):
    return Verifier(mint.public_pem, audience="box", session="s")


def token(mint, **claims):
    return jwt.encode({"aud": "box", "session_id": "s", "exp": NOW + 60, **claims}, mint._key, algorithm="RS256")


def test_a_token_that_comes_again_is_believed_without_its_signature_being_computed(mint, verifier, monkeypatch):
    good = token(mint)
    assert verifier.refusal(good, NOW) == ""
    monkeypatch.setattr(verifier, "_is_signed", lambda *signed: pytest.fail("it was computed again"))
    assert verifier.refusal(good, NOW) == ""


def test_a_token_that_comes_again_when_its_time_is_over_is_refused(mint, verifier):
    good = token(mint)
    assert verifier.refusal(good, NOW) == ""
    assert verifier.refusal(good, NOW + 121) == "it has expired"


def test_a_token_that_names_itself_is_believed_once(mint, verifier):
    once = token(mint, jti="one")
    assert verifier.refusal(once, NOW) == ""
    assert verifier.refusal(once, NOW) == "it was used already"


@pytest.mark.parametrize("part", [0, 1, 2], ids=["head", "body", "signature"])
def test_nothing_but_the_very_same_token_profits_from_it(mint, verifier, part):
    good, other = token(mint), token(Mint(new_private_key()), sub="somebody")
    assert verifier.refusal(good, NOW) == ""
    parts, others = good.split("."), other.split(".")
    parts[part] = others[part] if part else "e30"  # {}
    assert verifier.refusal(".".join(parts), NOW) != ""


@pytest.mark.parametrize("said", ["", ".", "\u00e9", "\udce9"])
def test_what_is_no_token_is_refused_before_and_after_one_was_believed(mint, verifier, said):
    assert verifier.refusal(said, NOW) == "it is no token"
    assert verifier.refusal(token(mint), NOW) == ""
    assert verifier.refusal(said, NOW) == "it is no token"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ('{"alg": []}', "its algorithm is not taken"),
        ('{"alg": {}}', "its algorithm is not taken"),
        ("[" * 5_500, "it is no token"),
    ],
    ids=["list", "object", "deep"],
)
def test_a_head_that_is_no_head_is_refused_and_breaks_nothing(verifier, head, why):
    """They were a TypeError and a RecursionError."""
    said = base64.urlsafe_b64encode(head.encode()).rstrip(b"=").decode()
    assert verifier.refusal(f"{said}.e30.AA", NOW) == why


def test_a_token_for_another_sandbox_is_refused_each_time(mint, verifier):
    foreign = token(mint, aud="another")
    for _ in range(2):
        assert verifier.refusal(foreign, NOW) == "it is for another sandbox"


# ---- signed with the secret of the claim

OWN_KEY = "ab" * 32


def keyed(**more):
    return Session(
        id="s", kind="code-interpreters", namespace="n", name="t", owner="alice", sandbox_uid="box", token_key=OWN_KEY, **more
    )  # fmt: skip


def said_by(line):
    return line.decode().removeprefix("authorization: Bearer ").strip()


@pytest.fixture
def sharing(mint):
    return Verifier(mint.public_pem, audience="box", session="s", own_key=OWN_KEY)


def own(key=OWN_KEY, **claims):
    body = {"aud": "box", "session_id": "s", "exp": NOW + 60, **claims}
    return jwt.encode(body, key, algorithm="HS256")


def test_the_gateway_signs_with_the_secret_that_the_daemon_has_and_both_it_and_others_read_it(mint, sharing):
    line = said_by(mint.line(keyed(), NOW))
    assert sharing.refusal(line, NOW) == ""
    said = jwt.decode(
        line, OWN_KEY, algorithms=["HS256"], audience="box", options={"verify_exp": False, "verify_iat": False}
    )
    assert said == {
        "iss": "agentcube-router", "aud": "box", "session_id": "s", "user_sub": "alice", "iat": int(NOW), "exp": int(NOW + 60),
    }  # fmt: skip


def test_a_router_that_shares_nothing_is_believed_beside_one_that_does(mint, sharing):
    assert sharing.refusal(token(mint), NOW) == ""
    assert (
        jwt.get_unverified_header(said_by(mint.line(msgspec.structs.replace(keyed(), id="other", token_key=""), NOW)))[
            "alg"
        ]
        == "RS256"
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (own("cd" * 32), "its signature is wrong"),
        (own(aud="other"), "it is for another sandbox"),
        (own(session_id="other"), "it is for another session"),
        (own(exp=NOW - 61), "it has expired"),
        (own(exp=None), "it has no expiry"),
        (own(exp=NOW + 25 * 3600), "it would live too long"),
        (own(iat=NOW + 61), "it is not valid yet"),
        (own().rpartition(".")[0] + ".", "its signature is wrong"),
        (own()[:-4], "its signature is wrong"),
    ],
)  # fmt: skip
def test_such_a_token_is_bound_to_the_session_and_its_time_as_others_are(sharing, said, why):
    assert sharing.refusal(said, NOW) == why


def test_the_public_key_signs_nothing(mint, sharing, verifier):
    # the best known mistake of those who take both: what everybody may read taken for a secret
    forged = _by_hand(mint.public_pem)
    assert sharing.refusal(forged, NOW) == "its signature is wrong"
    assert verifier.refusal(forged, NOW) == "its algorithm is not taken"


@pytest.mark.parametrize("key", ["", "a", "ab" * 31])
def test_a_secret_that_is_none_or_too_short_signs_nothing(mint, key):
    bare = Verifier(mint.public_pem, audience="box", session="s", own_key=key)
    assert bare.refusal(_by_hand(key), NOW) == "its algorithm is not taken"


def _by_hand(key):
    """PyJWT refuses to sign with such keys; who forges does not."""
    parts = [json.dumps(one).encode() for one in ({"alg": "HS256"}, {"aud": "box", "session_id": "s", "exp": NOW + 60})]
    signed = b".".join(base64.urlsafe_b64encode(one).rstrip(b"=") for one in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(key.encode(), signed, "sha256")).rstrip(b"=")
    return (signed + b"." + signature).decode()


def test_a_session_that_another_gateway_has_woken_elsewhere_gets_a_token_for_there(mint):
    """The one for the sandbox before was said for half a minute, and refused."""
    here, there = (msgspec.structs.replace(keyed(), id="moved", sandbox_uid=uid) for uid in ("here", "there"))
    assert mint.line(here, NOW) == mint.line(here, NOW + 1)
    verifier = Verifier(mint.public_pem, audience="there", session="moved", own_key=OWN_KEY)
    assert verifier.refusal(said_by(mint.line(there, NOW + 1)), NOW + 1) == ""
