from ipaddress import IPv4Network

import pytest

from hekla.node.addresses import POD_NETWORK, SERVICE_NETWORK, AddressesExhaustedError, LoopbackAddresses


def test_pods_and_services_live_on_loopback_and_apart():
    assert POD_NETWORK.is_loopback
    assert SERVICE_NETWORK.is_loopback
    assert not POD_NETWORK.overlaps(SERVICE_NETWORK)


def test_every_pod_has_its_own_address_and_keeps_it():
    addresses = LoopbackAddresses()
    taken = [addresses.of(f"u{number}") for number in range(1000)]
    assert len(set(taken)) == 1000
    assert [addresses.of(f"u{number}") for number in range(1000)] == taken
    assert not any(address.endswith((".0", ".255")) for address in taken)


def test_a_reserved_address_is_not_given_away():
    addresses = LoopbackAddresses()
    assert addresses.reserve("old", "127.64.0.1")
    assert addresses.of("new") == "127.64.0.2"
    assert not addresses.reserve("other", "127.64.0.1")
    assert addresses.of("old") == "127.64.0.1"


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "nonsense", ""])
def test_only_our_own_addresses_are_reserved(address):
    assert not LoopbackAddresses().reserve("u", address)


def test_a_freed_address_comes_back_last():
    addresses = LoopbackAddresses(IPv4Network("127.64.0.0/29"))
    first = addresses.of("a")
    addresses.release("a")
    others = [addresses.of(f"b{number}") for number in range(6)]
    assert first not in others
    assert addresses.of("c") == first
    with pytest.raises(AddressesExhaustedError, match="7 pods"):
        addresses.of("d")
