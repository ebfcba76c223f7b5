import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.app.standalone.certificates import (
    AUTHORITY_LIFE,
    OVERLAP,
    BrokenCertificatesError,
    Certificates,
    renewed,
    server_names,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = server_names("hooks", "hekla-system", [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])


def is_trusted(shown: bytes, bundle: bytes, now: datetime) -> bool:
    certificate = x509.load_pem_x509_certificate(shown)
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001 - any other authority
            continue
        return all(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in (authority, certificate))
    return False


def test_the_first_look_makes_all_and_the_next_changes_nothing():
    first = renewed(None, NAMES, START)
    assert is_trusted(first.certificate, first.authorities, START)
    assert renewed(first, NAMES, START + timedelta(minutes=1)) is first


def test_a_certificate_names_the_service_and_carries_its_key():
    shown = x509.load_pem_x509_certificate(renewed(None, NAMES, START).certificate)
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "hooks.hekla-system.svc" in names.get_values_for_type(x509.DNSName)


def test_a_certificate_is_renewed_by_the_same_authority_when_a_third_of_its_life_is_left():
    first = renewed(None, NAMES, START)
    assert renewed(first, NAMES, START + timedelta(days=59)) is first
    later = renewed(first, NAMES, START + timedelta(days=61))
    assert later.authorities == first.authorities
    assert later.certificate != first.certificate


def test_a_new_authority_is_trusted_for_a_while_before_it_signs():
    first = renewed(None, NAMES, START)
    due = START + AUTHORITY_LIFE * 0.7
    # kept fresh until then
    kept = renewed(renewed(first, NAMES, START + timedelta(days=61)), NAMES, due - timedelta(days=70))
    published = renewed(kept, NAMES, due)
    assert len(x509.load_pem_x509_certificates(published.authorities)) == 2


def test_other_names_make_another_certificate():
    first = renewed(None, NAMES[:1], START)
    assert renewed(first, NAMES, START).certificate != first.certificate


@given(st.lists(st.floats(min_value=0.01, max_value=26), min_size=30, max_size=60))
@settings(max_examples=30, deadline=None)
def test_what_is_shown_is_always_signed_by_somebody_who_was_trusted_a_look_before(days):
    """Looks come at any time, also weeks late; API servers know the bundle of the look before."""
    now = START
    before = renewed(None, NAMES, now)
    for pause in days:
        now += timedelta(days=pause)
        after = renewed(before, NAMES, now)
        assert is_trusted(after.certificate, after.authorities, now)
        assert is_trusted(after.certificate, before.authorities, now), "shown before anybody could know its authority"
        assert len(x509.load_pem_x509_certificates(after.authorities)) <= 4
        before = after


def test_after_a_year_of_sleep_everything_is_new():
    first = renewed(None, NAMES, START)
    now = START + timedelta(days=400)
    after = renewed(first, NAMES, now)
    assert is_trusted(after.certificate, after.authorities, now)
    assert not is_trusted(after.certificate, first.authorities, now)


def test_an_old_authority_leaves_once_it_has_expired():
    found, now = renewed(None, NAMES, START), START
    while now < START + timedelta(days=480):
        now += timedelta(days=1)
        found = renewed(found, NAMES, now)
        for one in x509.load_pem_x509_certificates(found.authorities):
            assert one.not_valid_after_utc > now
    [only] = x509.load_pem_x509_certificates(found.authorities)
    assert only.not_valid_before_utc > START + OVERLAP


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"authorities": b"x"}, "ca.crt is no certificate"),
        ({"authority_key": b"x"}, "a key cannot be read"),
        ({"certificate": b"x"}, "tls.crt is no certificate"),
    ],
)
def test_what_cannot_be_used_is_said(broken, sentence):
    good = renewed(None, NAMES, START)
    values = {name: getattr(good, name) for name in ("authorities", "authority_key", "certificate", "key")}
    with pytest.raises(BrokenCertificatesError, match=sentence):
        renewed(Certificates(**{**values, **broken}), NAMES, START)


def test_a_key_of_another_authority_is_not_signed_with():
    good, other = renewed(None, NAMES, START), renewed(None, NAMES, START)
    mixed = Certificates(good.authorities, other.authority_key, good.certificate, good.key)
    with pytest.raises(BrokenCertificatesError, match="does not belong"):
        renewed(mixed, NAMES, START)


def test_a_certificate_with_another_key_is_replaced():
    good, other = renewed(None, NAMES, START), renewed(None, NAMES, START)
    mixed = Certificates(good.authorities, good.authority_key, good.certificate, other.key)
    assert renewed(mixed, NAMES, START).certificate != good.certificate
