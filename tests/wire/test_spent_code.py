"""Code of a library that was needed once is given back, and is there again for who needs it."""

import subprocess
import sys
from pathlib import Path

from hekla.wire.spent_code import let_go

STORY = """
import re, sqlite3
from pathlib import Path
from hekla.wire.spent_code import let_go

def resident(library):
    found = re.findall(r"r-xp [^\\n]*" + library + r"[^\\n]*\\n(?:[A-Z][^\\n]*\\n)*?Rss: +(\\d+)", Path("/proc/self/smaps").read_text())
    return sum(map(int, found))

file = sqlite3.connect(":memory:")
file.execute("create table t as select 6 as a, 7 as b")
before = resident("(?:libsqlite3|_sqlite3)")
given = let_go("libsqlite3") + let_go("_sqlite3")
after = resident("(?:libsqlite3|_sqlite3)")
print(given > 0, before > 0, after < before, file.execute("select a * b from t").fetchone()[0])
"""


def test_code_that_was_given_back_is_read_again_when_it_is_needed() -> None:
    said = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "True", "True", "42"]


def test_what_is_not_code_or_not_there_is_left(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0000000000-7f0000001000 r--p 00000000 00:00 0\n7f0000001000-7f0000002000 rw-p 00001000 fe:00 12 /usr/lib/libx.so\n"
    )
    assert let_go("libx", maps) == 0
    assert let_go("libx", tmp_path / "none") == 0
