"""Control groups of platforms that were killed and never came back are tidied up by the next one; those of platforms that live are not."""

import os
import uuid
from pathlib import Path

import pytest

from hekla.node.runtimes.sandbox.groups import KEPT_SHARE, PREFIX, find_groups, sweep_abandoned


@pytest.fixture
def name():
    name = f"{PREFIX}test-{uuid.uuid4().hex[:8]}"
    found = find_groups(name)
    if not found.parents:
        pytest.skip(found.why_none)
    yield name, found
    for parent in set(found.parents.values()):
        for left in (parent / "s1", parent):
            if left.exists():
                os.rmdir(left)


def places(found) -> set[Path]:
    return {parent for parent in found.parents.values() if parent.exists()}


def test_groups_of_a_platform_that_lives_are_left_alone(name):
    _, found = name
    sweep_abandoned("another", young_s=0.0)
    assert places(found) == set(found.parents.values())
    found.close()
    assert places(found) == set()


def test_all_sandboxes_together_leave_room_for_others(name):
    """A pod that says no limit, as those of `base`, could take the whole machine, and the kernel then chose among all that runs."""
    _, found = name
    if "memory" not in found.parents:
        pytest.skip("no control group of memory can be made here")
    file = "memory.max" if found.is_v2 else "memory.limit_in_bytes"
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert int((found.parents["memory"] / file).read_text()) <= whole - whole // KEPT_SHARE


def test_empty_groups_of_one_that_was_killed_are_removed(name):
    own, found = name
    found.create("s1")
    for lock in found.locks:  # as the kernel does with the descriptors of the dead
        os.close(lock)
    sweep_abandoned(own, young_s=0.0)
    assert places(found) == set(found.parents.values()), "one's own are left"
    sweep_abandoned("another", young_s=0.0)
    assert places(found) == set()
