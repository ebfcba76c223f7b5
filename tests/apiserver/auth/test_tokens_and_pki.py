import base64
import json
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from hekla.apiserver.admission import User
from hekla.apiserver.auth.attributes import AllowAll, Attributes, Decision
from hekla.apiserver.auth.authenticate import Authenticator, impersonated
from hekla.apiserver.auth.pki import PkiError, ensure_pki, subject_of
from hekla.apiserver.auth.tokens import Claims, TokenError, TokenSigner
from hekla.apiserver.status import StatusError
from hekla.wire.messages import Peer, Request

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLAIMS = Claims(namespace="ns", account="runner", account_uid="u1", expires_at=10_000, token_id="t1")


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return ensure_pki(tmp_path_factory.mktemp("pki"), NOW)


@pytest.fixture(scope="module")
def signer(pki):
    return TokenSigner(pki.token_key.read_bytes())


class Objects:
    def __init__(self, **uids):
        self.uids = uids

    def get(self, resource, namespace, name):
        uid = self.uids.get(resource)
        return {"metadata": {"uid": uid}} if uid else None

    def list(self, resource, namespace=""):
        return []


def authenticator(signer, objects, now=5_000.0, **more):
    return Authenticator(signer=signer, reader=objects, clock=lambda: now, **more)


def bearer(token):
    return Request("GET", "/", {"authorization": f"Bearer {token}"})


def test_keys_are_readable_by_their_owner_alone(pki):
    for file in (pki.authority.key, pki.server.key, pki.admin.key, pki.token_key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_start_keeps_every_key(pki):
    before = {f.name: f.read_bytes() for f in pki.token_key.parent.iterdir()}
    ensure_pki(pki.token_key.parent, NOW + timedelta(days=1))
    assert {f.name: f.read_bytes() for f in pki.token_key.parent.iterdir()} == before


def test_certificates_are_renewed_before_they_expire_and_the_authority_stays(tmp_path):
    first = ensure_pki(tmp_path, NOW)
    authority, server = first.authority.certificate.read_bytes(), first.server.certificate.read_bytes()
    ensure_pki(tmp_path, NOW + timedelta(days=340))
    assert first.server.certificate.read_bytes() != server
    assert first.authority.certificate.read_bytes() == authority


def test_a_clock_that_was_ahead_when_the_certificate_was_made_is_healed(tmp_path):
    first = ensure_pki(tmp_path, NOW + timedelta(days=100))
    server = first.server.certificate.read_bytes()
    ensure_pki(tmp_path, NOW)
    assert first.server.certificate.read_bytes() != server


def test_a_broken_key_file_is_named(tmp_path):
    pki = ensure_pki(tmp_path, NOW)
    pki.server.key.write_text("garbage")
    with pytest.raises(PkiError, match=r"server\.crt or its key cannot be read"):
        ensure_pki(tmp_path, NOW)


def test_the_admin_certificate_is_the_administrator(pki):
    der = x509.load_pem_x509_certificate(pki.admin.certificate.read_bytes()).public_bytes(
        encoding=__import__("cryptography.hazmat.primitives.serialization", fromlist=["Encoding"]).Encoding.DER
    )
    assert subject_of(der) == ("kubernetes-admin", ("system:masters",))
    user = authenticator(None, None)(Request("GET", "/", peer=Peer(certificate=der)))
    assert user.groups == ("system:masters", "system:authenticated")


def test_a_token_says_who_its_bearer_is(signer):
    token = signer.sign(CLAIMS, issued_at=1_000)
    user = authenticator(signer, Objects(serviceaccounts="u1"))(bearer(token))
    assert user.name == "system:serviceaccount:ns:runner"
    assert "system:serviceaccounts:ns" in user.groups


def test_a_token_dies_with_its_account_and_with_its_pod(signer):
    token = signer.sign(
        Claims(**{**{f: getattr(CLAIMS, f) for f in CLAIMS.__dataclass_fields__}, "pod": "p", "pod_uid": "pu"}),
        issued_at=1_000,
    )
    assert authenticator(signer, Objects(serviceaccounts="u1", pods="pu"))(bearer(token))
    for objects in (Objects(), Objects(serviceaccounts="other", pods="pu"), Objects(serviceaccounts="u1")):
        with pytest.raises(StatusError) as refused:
            authenticator(signer, objects)(bearer(token))
        assert refused.value.code == 401


def test_a_token_expires_even_while_it_is_cached(signer):
    now = [5_000.0]
    subject = Authenticator(signer=signer, reader=Objects(serviceaccounts="u1"), clock=lambda: now[0])
    token = signer.sign(CLAIMS, issued_at=1_000)
    assert subject(bearer(token))
    now[0] = 10_000.0
    with pytest.raises(StatusError):
        subject(bearer(token))


def test_a_token_for_another_audience_is_refused(signer):
    token = signer.sign(
        Claims(namespace="ns", account="a", account_uid="u", audiences=("vault",), expires_at=10_000), issued_at=1
    )
    with pytest.raises(TokenError, match="meant for"):
        signer.verify(token, now_s=5_000)


def test_the_algorithm_none_is_refused(signer):
    body = base64.urlsafe_b64encode(json.dumps({"sub": "x"}).encode()).decode().rstrip("=")
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    with pytest.raises(TokenError, match="ES256"):
        signer.verify(f"{head}.{body}.", now_s=1)


@given(st.text(max_size=200))
def test_no_text_is_believed_and_none_crashes(text):
    signer = test_no_text_is_believed_and_none_crashes.signer
    with pytest.raises(TokenError):
        signer.verify(text, now_s=1)


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_token_with_any_bit_flipped_is_refused_or_says_the_same(position, bit):
    signer = test_no_text_is_believed_and_none_crashes.signer
    token = bytearray(signer.sign(CLAIMS, issued_at=1_000).encode())
    token[position % len(token)] ^= 1 << bit
    try:
        claims = signer.verify(token.decode("latin-1"), now_s=5_000)
    except TokenError:
        return
    assert claims == CLAIMS  # the unused low bits of the last base64 character


@pytest.fixture(autouse=True, scope="module")
def _shared_signer(signer):
    test_no_text_is_believed_and_none_crashes.signer = signer


def test_a_wrong_credential_is_unauthorized_and_none_is_anonymous(signer):
    subject = authenticator(signer, Objects())
    assert subject(Request("GET", "/")).name == "system:anonymous"
    with pytest.raises(StatusError):
        subject(bearer("wrong"))


def test_a_static_token_names_its_user(signer):
    subject = authenticator(signer, None, static_tokens={"s3cret": User("ann")})
    assert subject(bearer("s3cret")).name == "ann"


class AllowNone(AllowAll):
    def decide(self, attributes: Attributes) -> Decision:
        return Decision(False)


def test_impersonation_needs_the_right_to_it():
    request = Request("GET", "/", {"impersonate-user": "bob", "impersonate-group": "devs"})
    assert impersonated(request, User("ann"), AllowAll()) == User("bob", ("devs", "system:authenticated"))
    with pytest.raises(StatusError, match='User "ann" cannot impersonate resource "users"'):
        impersonated(request, User("ann"), AllowNone())
