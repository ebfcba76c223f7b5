"""Gives each pod a loopback address of its own, so that pods of one machine meet as if they had a network.

All of 127.0.0.0/8 reaches this machine and nothing beyond it. Which addresses are taken is told by the pods themselves
(status.podIP): the API server is the only memory, and `reserve` recalls it after a restart.
"""

import hashlib
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Network

POD_NETWORK = IPv4Network("127.64.0.0/11")
"""Where pods' addresses come from: 127.64.0.1 to 127.95.255.254."""

SERVICE_NETWORK = IPv4Network("127.96.0.0/16")
"""Where the API server should take cluster addresses of Services from, for pods of the embedded mode to reach them."""


NOWHERE = IPv6Network("100::/64")
"""Addresses that lead nowhere (RFC 6666): what is told of a pod whose own address only its machine reaches. A Service of IPv4 leaves such
a pod out, where the endpoint controllers fail whole over a loopback address; and whoever counts pods without an address as not ready is served.
"""


def nowhere(pod_uid: str) -> str:
    """The address that is told of a pod in a cluster of many machines; always the same one."""
    digest = hashlib.sha256(pod_uid.encode()).digest()
    return str(NOWHERE[int.from_bytes(digest[:8], "big")])


class AddressesExhaustedError(Exception):
    """Every pod address of this machine is taken."""


class LoopbackAddresses:
    """Hands out addresses, each to one pod at a time, and comes back to a freed one as late as it can."""

    def __init__(self, network: IPv4Network = POD_NETWORK, *, offset: int = 0) -> None:
        """Two agents on one machine begin at different `offset`s, so that their pods do not share ports."""
        self._network = network
        self._next = offset % network.num_addresses
        self._owner: dict[str, str] = {}
        self._address: dict[str, str] = {}

    def of(self, pod_uid: str) -> str:
        """The pod's address; the same one whenever it is asked for."""
        known = self._address.get(pod_uid)
        return known or self._take(pod_uid)

    def reserve(self, pod_uid: str, address: str) -> bool:
        """Take note of an address that a pod has already; False if it is not ours or somebody else's."""
        if pod_uid in self._address:
            return self._address[pod_uid] == address
        if address in self._owner or not _is_within(address, self._network):
            return False
        self._owner[address], self._address[pod_uid] = pod_uid, address
        return True

    def by_pod(self) -> Mapping[str, str]:
        """All addresses in use, by pod uid."""
        return self._address

    def release(self, pod_uid: str) -> None:
        """The pod is gone."""
        address = self._address.pop(pod_uid, None)
        if address is not None:
            del self._owner[address]

    def _take(self, pod_uid: str) -> str:
        for _ in range(self._network.num_addresses):
            candidate = self._network[self._next]
            self._next = (self._next + 1) % self._network.num_addresses
            address = str(candidate)
            if int(candidate) & 0xFF not in (0, 255) and address not in self._owner:
                self._owner[address], self._address[pod_uid] = pod_uid, address
                return address
        raise AddressesExhaustedError(f"all addresses of {self._network} are taken by {len(self._owner)} pods")


def _is_within(address: str, network: IPv4Network) -> bool:
    try:
        return IPv4Address(address) in network
    except ValueError:
        return False
