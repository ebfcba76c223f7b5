"""Bearer tokens: signed by a listed key, for us, in their time; everything else is refused with a sentence."""

import base64
import hmac
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hekla.edge.bearer import BearerError, Expected, KeySet, UnknownKeyError, verify

NOW = 1_700_000_000.0
OURS = Expected("https://issuer", ("hekla",))


@pytest.fixture(scope="module")
def key():
    return ec.generate_private_key(ec.SECP256R1())


def listed(key, key_id="k1", **more):
    algorithm = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id, **more}


def part(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def key_set(*documents):
    return KeySet.parse(json.dumps({"keys": list(documents)}))


def signed(key, algorithm="ES256", key_id="k1", **claims):
    body = {"iss": "https://issuer", "aud": "hekla", "sub": "ann", "exp": NOW + 600, **claims}
    return jwt.encode({k: v for k, v in body.items() if v is not None}, key, algorithm, headers={"kid": key_id})


def test_a_good_token_names_its_subject_and_its_end(key):
    claims = verify(signed(key), key_set(listed(key)), OURS, NOW)
    assert (claims.subject, claims.expires_at) == ("ann", NOW + 600)


def test_rsa_keys_are_taken():
    key = rsa.generate_private_key(65537, 2048)
    assert verify(signed(key, "RS256"), key_set(listed(key)), OURS, NOW).subject == "ann"


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"exp": NOW - 1}, "has expired"),
        ({"exp": None}, "no expiry"),
        ({"exp": "soon"}, "no number"),
        ({"nbf": NOW + 300}, "not valid yet (nbf"),
        ({"iat": NOW + 300}, "not valid yet (iat"),
        ({"iss": "https://other"}, "issued by"),
        ({"aud": "somebody"}, "none of the audiences"),
        ({"aud": None}, "none of the audiences"),
    ],
)
def test_what_is_wrong_is_said(key, claims, sentence):
    with pytest.raises(BearerError) as refused:
        verify(signed(key, **claims), key_set(listed(key)), OURS, NOW)
    assert sentence in str(refused.value)


def test_an_issuer_may_run_a_minute_ahead(key):
    assert verify(signed(key, iat=NOW + 59, nbf=NOW + 59), key_set(listed(key)), OURS, NOW).subject == "ann"


def test_any_audience_is_taken_where_none_is_expected(key):
    assert verify(signed(key, aud=["a", "b"]), key_set(listed(key)), Expected("https://issuer"), NOW).subject == "ann"


def test_a_forged_signature_is_refused(key):
    forger = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(BearerError, match="signature"):
        verify(signed(forger), key_set(listed(key)), OURS, NOW)


def test_a_token_without_a_signature_is_refused(key):
    head = json.dumps({"alg": "none", "kid": "k1"}).encode()
    body = json.dumps({"iss": "https://issuer", "aud": "hekla", "sub": "root", "exp": NOW + 600}).encode()
    with pytest.raises(BearerError):
        verify(f"{part(head)}.{part(body)}.", key_set(listed(key)), OURS, NOW)


def test_a_shared_secret_in_a_key_set_is_no_key(key):
    secret = {"kty": "oct", "kid": "k1", "k": base64.urlsafe_b64encode(b"x" * 32).decode()}
    keys = key_set(secret)
    assert len(keys) == 0
    with pytest.raises(UnknownKeyError):
        verify(signed(b"x" * 32, "HS256"), keys, OURS, NOW)


def test_a_public_key_used_as_a_shared_secret_does_not_sign(key):
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    head = part(json.dumps({"alg": "HS256", "kid": "k1"}).encode())
    _, body, _ = signed(key).split(".")
    forged = hmac.digest(public, f"{head}.{body}".encode(), "sha256")
    with pytest.raises(BearerError):
        verify(f"{head}.{body}.{part(forged)}", key_set(listed(key)), OURS, NOW)


def test_an_unknown_key_is_told_apart_so_that_keys_can_be_fetched_again(key):
    with pytest.raises(UnknownKeyError, match="k2"):
        verify(signed(key, key_id="k2"), key_set(listed(key), listed(key, "k3")), OURS, NOW)


def test_one_unreadable_key_does_not_take_the_others_away(key):
    keys = key_set({"kty": "EC", "kid": "bad", "crv": "P-0"}, {"kty": "new"}, "text", listed(key))
    assert verify(signed(key), keys, OURS, NOW).subject == "ann"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": {}}', "\xff", json.dumps({"keys": [{}] * 101})])
def test_a_key_set_that_is_none_is_refused(text):
    with pytest.raises(BearerError, match="key"):
        KeySet.parse(text)


@pytest.mark.parametrize("token", ["", ".", "a.b.c", "x" * 20_000, "é.é.é"])
def test_what_is_no_token_is_refused(key, token):
    with pytest.raises(BearerError):
        verify(token, key_set(listed(key)), OURS, NOW)
