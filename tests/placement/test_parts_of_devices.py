"""Where MIG instances are cut when parts of GPUs are claimed: specification quota-gpu 3.1, and 9.9 (61)."""

import pytest

from hekla.placement.devices.claims import CounterId, Device, DeviceId
from hekla.placement.devices.parts import Parts

# Of each profile of an A100, H100, H200 or B200: slices of memory, and where it may start
PROFILES = {
    "1g": (1, range(7)), "1g-double": (2, (0, 2, 4, 6)), "2g": (2, (0, 2, 4)), "3g": (4, (0, 4)), "4g": (4, (0,)), "7g": (8, (0,)),
}  # fmt: skip


class Gpus:
    """GPUs of eight slices, all whose instances are offered."""

    def __init__(self, count: int) -> None:
        self.left = {_slice(gpu, at): 1000 for gpu in range(count) for at in range(8)}
        self.taken: set[DeviceId] = set()
        self.parts = Parts(self.left, self.taken.__contains__)
        self.devices = [
            Device(
                id=DeviceId("gpu.nvidia.com", "n1", f"{gpu}-{profile}-{start}"), node="n1", attributes={"profile": profile},
                consumes=tuple((_slice(gpu, start + at), 1000) for at in range(size)),
            )
            for gpu in range(count) for profile, (size, starts) in PROFILES.items() for start in starts
        ]  # fmt: skip
        for device in self.devices:
            self.parts.add(device)

    def give(self, profile: str) -> str:
        """The first instance of a profile that can be given, and is; "" if there is none."""
        for device in self.parts.ordered(self.devices):
            if device.attributes["profile"] == profile and all(self.left[one] >= much for one, much in device.consumes):
                self.taken.add(device.id)
                self.left |= {one: self.left[one] - much for one, much in device.consumes}
                self.parts.changed(device)
                return device.id.name
        return ""


def _slice(gpu: int, at: int) -> CounterId:
    return CounterId("gpu.nvidia.com", "n1", f"gpu-{gpu}", f"memory-slice-{at}")


@pytest.mark.parametrize(
    ("profile", "start"), [("1g", 6), ("1g-double", 6), ("2g", 4), ("3g", 4), ("4g", 0), ("7g", 0)]
)
def test_on_an_empty_gpu_an_instance_is_cut_at_the_back(profile: str, start: int) -> None:
    assert Gpus(1).give(profile) == f"0-{profile}-{start}"


# What is asked for one after the other of two GPUs, and what of it is given
REQUESTS = {
    "small ones collect where a GPU is broken": (["1g", "1g", "1g", "7g"], ["0-1g-6", "0-1g-4", "0-1g-5", "1-7g-0"]),
    "a half stays for a 4g": (["1g", "2g", "4g", "4g"], ["0-1g-6", "0-2g-4", "0-4g-0", "1-4g-0"]),
    "three of 3g take two GPUs": (["3g", "3g", "3g", "3g", "3g"], ["0-3g-4", "0-3g-0", "1-3g-4", "1-3g-0", ""]),
    "the balanced layout": (["3g", "2g", "1g", "1g", "7g"], ["0-3g-4", "0-2g-0", "0-1g-2", "0-1g-3", "1-7g-0"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REQUESTS, ids=str)
def test_instances_are_cut_where_others_can_still_be(case: str) -> None:
    asked, given = REQUESTS[case]
    gpus = Gpus(2)
    assert [gpus.give(profile) for profile in asked] == given


def test_seven_small_ones_are_all_of_a_gpu_and_its_last_slice_is_lost() -> None:
    gpus = Gpus(1)
    assert all(gpus.give("1g") for _ in range(7))
    assert not any(gpus.give(profile) for profile in PROFILES)
