"""Whose word is believed about who asks, and that nothing of it is lost on the way."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from hekla.api.meta import Document
from hekla.apiserver.admission import User
from hekla.apiserver.auth.pki import Pair, Pki, ensure_pki
from hekla.app.front_proxy import Trust, headers_of, published, trust_of, user_of
from hekla.wire.messages import Peer, Request

NOW = datetime(2026, 11, 23, tzinfo=UTC)
ASKER = User("ada", ("ml", "system:authenticated"), extra={"example.org/why not": ("a", "b")})


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return ensure_pki(tmp_path_factory.mktemp("pki"), NOW)


@pytest.fixture(scope="module")
def config_map(pki: Pki) -> Document:
    return next(
        iter(published(pki.front_proxy_authority.certificate.read_text(), pki.authority.certificate.read_text()))
    )[1]


@pytest.fixture(scope="module")
def trust(config_map: Document) -> Trust:
    found = trust_of(config_map)
    assert found is not None
    return found


def der(pair: Pair) -> bytes:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes()).public_bytes(Encoding.DER)


def passed_on(user: User, certificate: bytes | None) -> Request:
    headers: dict[str, str] = {}
    for key, value in headers_of(user):  # joined as the wire joins them
        headers[key.lower()] = f"{headers[key.lower()]}, {value}" if key.lower() in headers else value
    return Request("GET", "/", headers, peer=Peer(certificate=certificate))


def test_who_asked_arrives_whole(pki: Pki, trust: Trust) -> None:
    assert user_of(passed_on(ASKER, der(pki.front_proxy)), trust) == ASKER


def test_nobody_else_is_believed(pki: Pki, trust: Trust) -> None:
    assert user_of(passed_on(ASKER, None), trust) is None
    assert user_of(passed_on(ASKER, der(pki.admin)), trust) is None
    assert user_of(passed_on(User(""), der(pki.front_proxy)), trust) is None


def test_the_proxys_authority_is_not_that_of_users(pki: Pki) -> None:
    users, proxies = (
        x509.load_pem_x509_certificate(one.certificate.read_bytes())
        for one in (pki.authority, pki.front_proxy_authority)
    )
    shown = x509.load_pem_x509_certificate(pki.front_proxy.certificate.read_bytes())
    shown.verify_directly_issued_by(proxies)
    with pytest.raises(ValueError, match=r"(?i)issuer"):
        shown.verify_directly_issued_by(users)


@pytest.mark.parametrize(
    "lacks", ["requestheader-client-ca-file", "requestheader-username-headers"]
)  # a cluster without an aggregation layer
def test_an_api_server_that_passes_nothing_on_is_told_apart(config_map: Document, lacks: str) -> None:
    data = {key: value for key, value in config_map["data"].items() if key != lacks}
    assert trust_of({**config_map, "data": data}) is None
    assert trust_of({"data": {**data, lacks: "[broken"}}) is None or lacks.endswith("ca-file")


def test_the_platforms_files_are_made_once(tmp_path: Path) -> None:
    first = ensure_pki(tmp_path, NOW).front_proxy_authority.certificate.read_bytes()
    assert ensure_pki(tmp_path, NOW).front_proxy_authority.certificate.read_bytes() == first
