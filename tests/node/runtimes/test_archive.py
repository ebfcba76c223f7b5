"""What a sandbox packs of its files: all that somebody changed, and nothing that every sandbox is made with."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import msgspec
import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from hekla.node.shim.sandbox import archive as archives
from hekla.node.shim.sandbox import inside
from hekla.node.shim.sandbox.archive import MOST_PIECES, Given, pack, unpack

NOBODY = 65534
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


def told(directory):
    """What is told of packing all of a directory, and the archive's size in bytes."""
    own, output = os.open(directory, os.O_RDONLY), os.memfd_create("packed")
    try:
        return pack(own, output), os.fstat(output).st_size
    finally:
        os.close(own)
        os.close(output)


def meanwhile(monkeypatch, name, change, of=""):
    """Have something happen right after the first call of one of `os`'s functions, or the first for a path that ends so."""
    real, is_over = getattr(os, name), threading.Event()

    def then(path, **named):
        found = real(path, **named)
        if not is_over.is_set() and str(path).endswith(of):
            is_over.set()
            change()
        return found

    monkeypatch.setattr(archives.os, name, then)


def test_what_a_program_deletes_meanwhile_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "kept").write_text("1")
    (tmp_path / "lock").write_text("2")
    meanwhile(monkeypatch, "listdir", (tmp_path / "lock").unlink)
    assert told(tmp_path)[0] == {"files": 1, "left_out": [], "unreadable": []}


def test_a_directory_that_a_program_deletes_meanwhile_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "kept").write_text("1")
    (tmp_path / "work" / "deep").mkdir(parents=True)
    meanwhile(monkeypatch, "listdir", lambda: shutil.rmtree(tmp_path / "work"))
    assert told(tmp_path)[0]["files"] == 1


def test_a_program_that_makes_and_deletes_files_all_the_time_does_not_keep_others_from_being_packed(tmp_path):
    (tmp_path / "kept").write_text("1")
    churn = 'cd "$0"; while :; do mkdir -p a/b; echo 1 > a/b/c; echo 2 > d; ln -sf d e; rm -rf a d e; done'
    with subprocess.Popen(["sh", "-c", churn, tmp_path]) as program:
        try:
            for _ in range(100):
                assert told(tmp_path)[0]["files"] >= 1
        finally:
            program.kill()


def test_a_file_that_shrinks_while_it_is_packed_ends_in_zeros(made, tmp_path, monkeypatch):
    directory, _ = made
    log = directory / "log"
    log.write_bytes(b"x" * 100_000)
    real = os.fstat

    def then_cut(descriptor):
        found = real(descriptor)
        if found.st_size == 100_000:
            os.truncate(log, 10)
        return found

    monkeypatch.setattr(archives.os, "fstat", then_cut)
    copy = unpacked(packed(directory, Given(), tmp_path), tmp_path / "copy")
    assert copy["log"] == "x" * 10 + "\0" * 99_990


def test_what_was_swapped_for_another_file_is_not_read(tmp_path, monkeypatch):
    """A directory that leads elsewhere between a look and an open might lead to what only the daemon may read."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "note").write_text("the daemon's")
    sandbox = tmp_path / "sandbox"
    (sandbox / "own").mkdir(parents=True)
    (sandbox / "own" / "note").write_text("mine")

    def swapped():
        shutil.rmtree(sandbox / "own")
        (sandbox / "own").symlink_to(secret)

    meanwhile(monkeypatch, "lstat", swapped, of="note")
    assert told(sandbox)[0]["files"] == 1


def test_a_file_that_became_a_fifo_does_not_stop_the_packing(tmp_path, monkeypatch):
    (tmp_path / "note").write_text("mine")

    def swapped():
        (tmp_path / "note").unlink()
        os.mkfifo(tmp_path / "note")

    meanwhile(monkeypatch, "lstat", swapped)
    assert told(tmp_path)[0]["files"] == 0


@pytest.mark.parametrize("what", ["a link", "a link to itself", "a socket", "a directory"])
def test_a_file_that_became_something_else_is_left_out_and_the_rest_is_packed(tmp_path, monkeypatch, what):
    (tmp_path / "kept").write_text("1")
    (tmp_path / "note").write_text("mine")

    def swapped():
        (tmp_path / "note").unlink()
        if what == "a socket":
            with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(tmp_path):
                made.bind("note")
        elif what == "a directory":
            (tmp_path / "note").mkdir()
        else:
            (tmp_path / "note").symlink_to("note" if "itself" in what else "kept")

    meanwhile(monkeypatch, "lstat", swapped, of="note")
    assert told(tmp_path)[0] == {"files": 1, "left_out": [], "unreadable": []}


def test_a_directory_that_became_a_link_before_it_was_looked_into_is_not_followed(tmp_path, monkeypatch):
    secret, sandbox = tmp_path / "secret", tmp_path / "sandbox"
    secret.mkdir()
    (secret / "note").write_text("the daemon's")
    (sandbox / "own").mkdir(parents=True)

    def swapped():
        (sandbox / "own").rmdir()
        (sandbox / "own").symlink_to(secret)

    meanwhile(monkeypatch, "lstat", swapped, of="own")
    copy = unpacked(packed(sandbox, Given(), tmp_path), tmp_path / "copy")
    assert copy == {"own": ""}


def test_a_tree_deeper_than_any_path_is_packed_as_far_as_a_path_can_say(tmp_path):
    deep = tmp_path / "deep"
    deep.mkdir()
    (deep / "kept").write_text("1")
    make = "import os, sys; os.chdir(sys.argv[1])\nfor _ in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)"
    subprocess.run([sys.executable, "-c", make, deep], check=True)
    answer, _ = told(deep)
    assert answer["files"] == 1 + 4095 // 201
    assert [one[:201] for one in answer["unreadable"]] == ["/" + "d" * 200]


def test_what_is_left_out_can_be_told_whatever_bytes_its_name_has(tmp_path):
    for number in range(100):
        os.mkfifo(os.fsencode(tmp_path) + b"/\xff" + b"\x01" * 200 + b"%d" % number)
    answer, _ = told(tmp_path)
    assert len(answer["left_out"]) == 100
    assert msgspec.json.encode(answer)


def test_a_long_answer_of_the_child_that_packs_is_heard_to_its_end():
    answer = {"left_out": ["x" * 4000] * 100}
    assert asyncio.run(inside._in_child(lambda: answer)) == answer


@pytest.mark.parametrize("what", ["a directory", "a file", "a link to a file"])
def test_nothing_is_written_over_a_link_that_a_program_laid_where_a_copy_is_made(tmp_path, monkeypatch, what):
    """In a sandbox of a pool the template's own program may run before it is anybody's copy; the daemon may do more than that."""
    source, target, theirs = tmp_path / "source", tmp_path / "target", tmp_path / "theirs"
    for one in (source / "own", target, theirs):
        one.mkdir(parents=True)
    (source / "own" / "note").write_text("mine")
    (source / "own" / "note").chmod(0o777)
    (theirs / "note").write_text("the daemon's")
    (theirs / "note").chmod(0o600)
    archive = packed(source, Given(), tmp_path)

    def swapped_directory(*_, **__):
        shutil.rmtree(target / "own")
        (target / "own").symlink_to(theirs)

    def swapped_file(*_, **__):
        (target / "own" / "note").unlink(missing_ok=True)
        (target / "own" / "note").symlink_to(theirs / "note")

    function = {"a directory": "mkdir", "a file": "unlink", "a link to a file": "open"}[what]
    real, is_over = getattr(os, function), threading.Event()

    def then(path, *arguments, **named):
        ours = str(path).endswith("own" if what == "a directory" else "note")
        if ours and not is_over.is_set() and what == "a link to a file":
            is_over.set()
            found = real(path, *arguments, **named)
            swapped_file()
            return found
        try:
            return real(path, *arguments, **named)
        finally:
            if ours and not is_over.is_set():
                is_over.set()
                (swapped_directory if what == "a directory" else swapped_file)()

    monkeypatch.setattr(archives.os, function, then)
    own = os.open(target, os.O_RDONLY)
    with open(archive, "rb") as file, contextlib.suppress(OSError):
        unpack(own, file.fileno())
    os.close(own)
    assert is_over.is_set()
    assert ((theirs / "note").read_text(), (theirs / "note").stat().st_mode & 0o777) == ("the daemon's", 0o600)


def test_neither_packing_nor_unpacking_remembers_every_entry(tmp_path):
    for number in range(50):
        (tmp_path / "in" / f"{number}").parent.mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}").write_text("1")
    kept = []
    real = archives.tarfile.TarFile.close

    def counted(tar):
        kept.append(len(tar.members))
        real(tar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives.tarfile.TarFile, "close", counted)
        unpacked(packed(tmp_path / "in", Given(), tmp_path), tmp_path / "out")
    assert kept == [0, 0]


@contextlib.contextmanager
def as_somebody(directory):
    """Not as root, who may read everything, but as the one whose files these are."""
    if os.geteuid() != 0:
        yield
        return
    for one in (directory, *directory.rglob("*")):
        os.chown(one, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_is_told_and_the_rest_is_packed(tmp_path):
    (tmp_path / "kept").write_text("1")
    (tmp_path / "closed").write_text("2")
    (tmp_path / "closed").chmod(0)
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "note").write_text("3")
    (tmp_path / "shut").chmod(0o444)  # its names may be read, and nothing of what they name
    own = os.open(tmp_path, os.O_RDONLY)
    with as_somebody(tmp_path):
        found = pack(own, output := os.memfd_create("archive"))
    os.close(own)
    os.close(output)
    assert found == {"files": 2, "left_out": [], "unreadable": ["/closed", "/shut/note"]}


def test_a_new_file_that_got_the_number_of_a_deleted_one_is_no_link_to_it(tmp_path, monkeypatch):
    directory = tmp_path / "in"
    directory.mkdir()
    for name, other in (("a", "b"), ("y", "z")):
        (directory / name).write_text("old")
        os.link(directory / name, directory / other)
    (directory / "m").write_text("what comes between")
    number = (directory / "a").stat().st_ino

    def exchange():
        for name in "abyz":
            (directory / name).unlink()
        for at in range(100):
            new = tmp_path / f"new {at}"
            new.write_text("new")
            if new.stat().st_ino == number:
                os.link(new, directory / "y")
                os.link(new, directory / "z")
                return

    meanwhile(monkeypatch, "lstat", exchange, of="m")
    copy = unpacked(packed(directory, Given(), tmp_path), tmp_path / "copy")
    if "y" not in copy:
        pytest.skip("this file system does not give numbers of deleted files to new ones")
    assert copy == {"a": "old", "b": "old", "m": "what comes between", "y": "new", "z": "new"}
    assert (tmp_path / "copy" / "y").samefile(tmp_path / "copy" / "z")


@pytest.mark.parametrize("content", [None, "a file is in it"])
def test_a_directory_that_became_a_link_or_a_file_is_one_in_the_copy(tmp_path, content):
    directory, target = tmp_path / "a", tmp_path / "b"
    directory.mkdir()
    (directory / "srv").symlink_to("/tmp") if content is None else (directory / "srv").write_text(content)
    (target / "srv" / "deep").mkdir(parents=True)
    (target / "srv" / "deep" / "note").write_text("from the image")
    archive = packed(directory, Given(), tmp_path)
    own = os.open(target, os.O_RDONLY)
    with open(archive, "rb") as file:
        unpack(own, file.fileno())
    os.close(own)
    assert os.readlink(target / "srv") == "/tmp" if content is None else (target / "srv").read_text() == content


def test_holes_stay_holes(made, tmp_path):
    directory, _ = made
    with open(directory / "disk", "wb") as file:
        file.truncate(256 << 20)
        os.pwrite(file.fileno(), b"in the middle", 100 << 20)
    archive = packed(directory, Given(), tmp_path)
    assert archive.stat().st_size < 1 << 20
    target = tmp_path / "copy"
    target.mkdir()
    own = os.open(target, os.O_RDONLY)
    with open(archive, "rb") as file:
        unpack(own, file.fileno())
    os.close(own)
    with open(target / "disk", "rb") as file:
        assert os.pread(file.fileno(), 15, (100 << 20) - 1) == b"\0in the middle\0"
    found = (target / "disk").stat()
    assert (found.st_size, found.st_blocks * 512 < 1 << 20) == (256 << 20, True)


@generated(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9_000)), max_size=12), st.integers(0, 300_000))
def test_a_file_comes_out_as_it_went_in_wherever_its_holes_are(tmp_path_factory, writes, size):
    directory = tmp_path_factory.mktemp("world")
    (directory / "in").mkdir()
    with open(directory / "in" / "disk", "wb") as file:
        file.truncate(size)
        for block, length in writes:
            os.pwrite(file.fileno(), bytes([block + 1]) * length, block * 4096)
    archive = packed(directory / "in", Given(), directory)
    listed = subprocess.run(["tar", "-xOf", archive, "disk"], capture_output=True, check=True).stdout
    assert listed == (directory / "in" / "disk").read_bytes(), "GNU's tar reads it, too"
    unpacked(archive, directory / "out")
    assert (directory / "out" / "disk").read_bytes() == listed


def test_a_file_of_very_many_pieces_is_packed_whole_after_so_many(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_PIECES", 3)
    assert MOST_PIECES > 3
    directory = tmp_path / "in"
    directory.mkdir()
    with open(directory / "disk", "wb") as file:
        for block in range(0, 20, 2):
            os.pwrite(file.fileno(), b"x" * 4096, block * 4096)
    copy = unpacked(packed(directory, Given(), tmp_path), tmp_path / "copy")
    assert copy["disk"] == (directory / "disk").read_text()


@pytest.mark.parametrize("size", [200_000, 5_000])
def test_no_room_is_told_with_the_file_and_what_helps(tmp_path, size):
    """Also where it shows only at the end, when what was gathered is written."""
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "large").write_bytes(b"x" * size)
    limited = "import resource, os, signal, sys; from hekla.node.shim.sandbox.archive import pack; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2})); pack(os.open(sys.argv[1], os.O_RDONLY), os.memfd_create('x'))"
    told = subprocess.run([sys.executable, "-c", limited, directory], capture_output=True, text=True, check=False)
    last = told.stderr.splitlines()[-1]
    assert "no room for all files of the sandbox in one checkpoint, at /large (File too large); delete" in last
