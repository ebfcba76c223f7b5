"""A token whose signature was found right is not computed again, and is judged as anew in everything else."""

import jwt
import pytest

from hekla.sandbox.daemon.tokens import Verifier
from hekla.sandbox.gateway.minting import Mint, new_private_key

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


def test_a_token_for_another_sandbox_is_refused_each_time(mint, verifier):
    foreign = token(mint, aud="another")
    for _ in range(2):
        assert verifier.refusal(foreign, NOW) == "it is for another sandbox"
