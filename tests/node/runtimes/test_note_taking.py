"""Notes in a notebook outlive who wrote them, wholly or not at all, and wake nobody; where there can be none they go by packet."""

import errno
import json
import os

import pytest

from hekla.node.runtimes.sandbox import note_taking
from hekla.node.runtimes.sandbox.note_taking import Notebooks
from hekla.node.shim.sandbox import notebook
from hekla.node.shim.sandbox.notebook import Notebook, entries


class PaperSupervisor:
    """What is offered to it, of which it takes a copy as the kernel makes one."""

    def __init__(self, has_room=True):
        self.has_room = has_room
        self.copies, self.withdrawn = [], 0

    def offer(self, descriptor):
        if self.has_room:
            self.copies.append(os.dup(descriptor))
        return self.has_room

    def withdraw(self):
        self.withdrawn += 1

    def read(self):
        return list(entries(self.copies[-1]))


@pytest.fixture
def supervisor():
    made = PaperSupervisor()
    yield made
    for descriptor in made.copies:
        os.close(descriptor)


@pytest.fixture
def notebooks(supervisor):
    made = Notebooks(supervisor.offer, supervisor.withdraw)
    made.is_wanted = True
    yield made
    made.close()


def test_entries_are_read_as_they_were_written():
    book = Notebook()
    written = [b"x" * size for size in (1, 10, 5000)]
    for entry in written:
        book.write(entry)
    assert list(entries(book.descriptor)) == written
    book.close()


def test_an_entry_that_was_cut_off_anywhere_is_none_and_costs_no_other():
    for cut in range(1, 8 + 5):
        book = Notebook()
        book.write(b"first")
        whole = book.size
        book.write(b"later")
        os.ftruncate(book.descriptor, book.size - cut)
        assert list(entries(book.descriptor)) == [b"first"], cut
        os.ftruncate(book.descriptor, book.size)  # the kernel had made room, and the bytes were still to come
        assert list(entries(book.descriptor)) == [b"first"], (cut, whole)
        book.close()


def test_who_has_a_copy_reads_on_when_the_writer_is_gone():
    book = Notebook()
    book.write(b"mine")
    copy = os.dup(book.descriptor)
    book.close()
    assert list(entries(copy)) == [b"mine"]
    os.close(copy)


def test_a_supervisor_that_takes_none_is_offered_none(supervisor):
    assert not Notebooks(supervisor.offer, supervisor.withdraw).write("s1", b"1")
    assert not supervisor.copies


def test_until_the_supervisor_has_one_notes_go_by_packet_too(notebooks, supervisor):
    assert not notebooks.write("s1", b"1")
    assert not notebooks.write("s1", b"2")
    notebooks.taken(is_taken=True)
    assert notebooks.write("s2", b"3")
    assert supervisor.read() == [b"1", b"2", b"3"]
    assert len(supervisor.copies) == 1


def test_one_for_which_there_is_no_room_is_offered_again(notebooks, supervisor):
    supervisor.has_room = False
    assert not notebooks.write("s1", b"1")
    supervisor.has_room = True
    assert not notebooks.write("s1", b"2")
    assert supervisor.read() == [b"2"]
    notebooks.taken(is_taken=False)
    assert not notebooks.write("s2", b"3")
    assert supervisor.read() == [b"2", b"3"]


@pytest.mark.parametrize("has_room", [False, True])
def test_what_is_offered_in_vain_costs_a_note_no_more_than_another_note(notebooks, supervisor, monkeypatch, has_room):
    """Each note wrote all notes into a new notebook, for as long as the supervisor took none: a burst's work was its number squared."""
    written = []
    write = Notebook.write
    monkeypatch.setattr(Notebook, "write", lambda book, entry: (written.append(entry), write(book, entry)))
    supervisor.has_room = has_room
    for number in range(200):
        notebooks.write(f"s{number}", b"%d" % number)
        if has_room:
            notebooks.taken(is_taken=False)
    assert len(written) < 3 * 200
    assert len(supervisor.copies) < 20


def test_a_long_one_is_followed_by_one_in_which_only_what_holds_is(notebooks, supervisor, monkeypatch):
    monkeypatch.setattr(note_taking, "LONG_BYTES", 1000)
    notebooks.write("s1", b"first")
    notebooks.taken(is_taken=True)
    notebooks.write("gone", b"of somebody gone")
    notebooks.forget("gone")
    number = 0
    while len(supervisor.copies) < 2:
        number += 1
        assert notebooks.write("s2", b"%d" % number)
    assert sorted(supervisor.read()) == sorted([b"first", b"%d" % number])
    assert notebooks.write("s2", b"between")  # the supervisor has not said that it has the second one
    for copy in supervisor.copies:
        assert list(entries(copy))[-1] == b"between"
    notebooks.taken(is_taken=True)
    assert notebooks.write("s2", b"after")
    first, second = ([*entries(copy)][-1] for copy in supervisor.copies)
    assert (first, second) == (b"between", b"after")


def test_the_one_before_holds_where_the_next_was_not_taken(notebooks, supervisor, monkeypatch):
    monkeypatch.setattr(note_taking, "LONG_BYTES", 100)
    notebooks.write("s1", b"first")
    notebooks.taken(is_taken=True)
    while len(supervisor.copies) < 2:
        notebooks.write("s1", b"again")
    notebooks.taken(is_taken=False)
    assert notebooks.write("s1", b"last")
    assert [*entries(supervisor.copies[0])][-1] == b"last"


def test_a_notebook_that_cannot_be_followed_grows_in_bounds_and_notes_go_by_packet(notebooks, supervisor, monkeypatch):
    """It grew by a kilobyte a note for as long as the supervisor had no room for another."""
    monkeypatch.setattr(note_taking, "LONG_BYTES", 100)
    monkeypatch.setattr(notebook, "MOST_BYTES", 1000)
    notebooks.write("s1", b"first")
    notebooks.taken(is_taken=True)
    supervisor.has_room = False
    number = 0
    while number < 1000 and notebooks.write("s1", b"%d" % number):
        number += 1
    assert supervisor.withdrawn == 1
    assert os.fstat(supervisor.copies[0]).st_size <= 1000
    assert supervisor.read()[-1] == b"%d" % (number - 1), "what comes now goes by packet, and after it"
    assert not notebooks.write("s1", b"later")


def test_without_memory_the_supervisor_reads_what_there_is_and_notes_go_by_packet(notebooks, supervisor, monkeypatch):
    notebooks.write("s1", b"1")
    notebooks.taken(is_taken=True)

    def refuse(self, entry):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Notebook, "write", refuse)
    assert not notebooks.write("s1", b"2")
    assert supervisor.withdrawn == 1
    monkeypatch.undo()
    assert not notebooks.write("s1", b"3")
    assert supervisor.read() == [b"1"]
    assert supervisor.withdrawn == 1


def test_json_comes_back_as_it_went(notebooks, supervisor):
    told = {"id": "s1", "note": {"slot": 1, "session": "mine"}}
    notebooks.write("s1", json.dumps(told).encode())
    assert [json.loads(entry) for entry in supervisor.read()] == [told]
