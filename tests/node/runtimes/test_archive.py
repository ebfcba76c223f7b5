"""What a sandbox packs of its files: all that somebody changed, and nothing that every sandbox is made with."""

import os
import time

import pytest

from hekla.node.shim.sandbox.archive import Given, pack, unpack

COARSE = 5  # CLOCK_REALTIME_COARSE, by which the kernel dates most files


@pytest.fixture
def made(tmp_path):
    """A sandbox's files as it was made: two directories, one in the other, and a file."""
    (tmp_path / "sandbox" / "home" / "user").mkdir(parents=True)
    (tmp_path / "sandbox" / "etc").mkdir()
    (tmp_path / "sandbox" / "etc" / "passwd").write_text("root\n")
    names = frozenset(("home", "home/user", "etc", "etc/passwd"))
    # newer kernels date some changes more finely, and so later, than this clock goes
    made_ns = max((tmp_path / "sandbox" / name).stat().st_ctime_ns for name in names)
    while time.clock_gettime_ns(COARSE) <= made_ns:  # what is changed from now on has another date than what was made
        continue
    given = Given(names, time.clock_gettime_ns(COARSE))
    return tmp_path / "sandbox", given


def packed(directory, given, tmp_path):
    """The archive of a directory."""
    archive = tmp_path / "archive"
    own = os.open(directory, os.O_RDONLY)
    try:
        with open(archive, "wb") as file:
            pack(own, file.fileno(), given)
    finally:
        os.close(own)
    return archive


def unpacked(archive, target):
    """What an archive makes of an empty directory: names to contents."""
    target.mkdir()
    own = os.open(target, os.O_RDONLY)
    try:
        with open(archive, "rb") as file:
            unpack(own, file.fileno())
    finally:
        os.close(own)
    return {str(one.relative_to(target)): one.read_text() if one.is_file() else "" for one in target.rglob("*")}


def test_what_a_sandbox_was_made_with_is_not_packed(made, tmp_path):
    directory, given = made
    assert packed(directory, given, tmp_path).stat().st_size == 0


def test_what_was_made_anew_or_changed_is_packed_with_all_that_it_is_in(made, tmp_path):
    directory, given = made
    (directory / "home" / "user" / "note").write_text("mine")
    (directory / "etc" / "passwd").write_text("root\nme\n")
    archive = packed(directory, given, tmp_path)
    assert unpacked(archive, tmp_path / "copy") == {
        "home": "", "home/user": "", "home/user/note": "mine", "etc": "", "etc/passwd": "root\nme\n",
    }  # fmt: skip


def test_a_file_with_an_old_date_is_packed_all_the_same(made, tmp_path):
    """Whoever writes it may say that it is old: the kernel's own date of the change says that it is not."""
    directory, given = made
    (directory / "etc" / "passwd").write_text("root\nme\n")
    os.utime(directory / "etc" / "passwd", (0, 0))
    (directory / "home" / "old").write_text("mine")
    os.utime(directory / "home" / "old", (0, 0))
    copy = unpacked(packed(directory, given, tmp_path), tmp_path / "copy")
    assert (copy["etc/passwd"], copy["home/old"]) == ("root\nme\n", "mine")


def test_where_nobody_says_what_it_was_made_with_all_is_packed(made, tmp_path):
    directory, _ = made
    assert unpacked(packed(directory, Given(), tmp_path), tmp_path / "copy").keys() == {
        "home", "home/user", "etc", "etc/passwd",
    }  # fmt: skip
