"""Log files that do not fill a disk."""

import os
import threading

from hekla.edge.log_files import begin_anew, is_too_large


def test_several_writers_of_one_file_put_it_aside_once_and_lose_no_line(tmp_path):
    path, most, lines = tmp_path / "log", 4096, 400

    def write(name):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        for number in range(lines):
            os.write(file, f"{name} {number:04} {'x' * 40}\n".encode())
            if is_too_large(file, most):
                fresh = begin_anew(path, file, kept=1000)
                os.close(file)
                file = fresh
        os.close(file)

    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    files = list(tmp_path.iterdir())
    found = sorted(line for file in files for line in file.read_text().splitlines())
    assert found == sorted(f"{name} {number:04} {'x' * 40}" for name in "abc" for number in range(lines))
    # put aside by one of the three: were each to do it, there would be files that never grew
    assert all(file.stat().st_size >= most for file in files if file != path)
    assert len(files) > 5
    assert path.stat().st_mode & 0o777 == 0o640


def test_so_many_are_kept_and_what_is_no_file_is_left_alone(tmp_path):
    path = tmp_path / "log"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number in range(6):
        os.write(file, b"%d\n" % number)
        file = begin_anew(path, file, kept=2)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"log": "", "log.1": "5\n", "log.2": "4\n"}
    reading, writing = os.pipe()
    os.write(writing, b"12345")
    assert not is_too_large(writing, 1)
    os.close(reading)
    os.close(writing)
