"""How a sandbox comes into its control groups: as a single thread where that is possible, for then no fork of the machine waits for it."""

import pytest

from hekla.node.shim import linux


@pytest.mark.parametrize(
    ("offered", "written"),
    [(("tasks", "cgroup.procs"), "tasks"), (("cgroup.procs",), "cgroup.procs")],
    ids=["version 1", "version 2"],
)
def test_a_process_moves_itself_as_a_thread_where_the_group_takes_threads(tmp_path, offered, written):
    for group in ("memory", "pids"):
        (tmp_path / group).mkdir()
        for file in offered:
            (tmp_path / group / file).write_text("")
    linux.join_groups([f"{tmp_path}/memory", f"{tmp_path}/pids"])
    for group in ("memory", "pids"):
        assert {file: (tmp_path / group / file).read_text() for file in offered} == {
            file: "0" if file == written else "" for file in offered
        }
