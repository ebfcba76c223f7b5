import os
import select
from dataclasses import replace

from hekla.app.child import pack_settings, unpack_settings
from hekla.app.data_directory import DataDirectory
from hekla.app.detached import start_detached, stop
from hekla.app.settings import COMPONENTS, Settings

PATIENCE_S = 60.0


def alone(path):
    return Settings(data_dir=path, port=0, nodes=0, without=frozenset(COMPONENTS), log_level="warning")


def ended(pid):
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], PATIENCE_S)[0])
    finally:
        os.close(handle)


def test_a_platform_that_is_tied_to_its_starter_ends_when_that_is_gone(tmp_path):
    reading, writing = os.pipe()
    start_detached(alone(tmp_path), lives_while=reading)
    running = DataDirectory(tmp_path).running()
    os.close(writing)  # what the kernel does for a starter that dies, however it dies
    assert ended(running.pid)
    os.close(reading)
    assert DataDirectory(tmp_path).running() is None


def test_a_platform_that_is_not_tied_stays_until_it_is_stopped(tmp_path):
    start_detached(alone(tmp_path))
    running = DataDirectory(tmp_path).running()
    assert running.is_alive
    assert stop(running, timeout_s=PATIENCE_S)
    assert not running.is_alive


def test_who_asks_knows_how_many_nodes_are_to_come(tmp_path):
    start_detached(alone(tmp_path))
    running = DataDirectory(tmp_path).running()
    stop(running, timeout_s=PATIENCE_S)
    assert running.nodes == 0
    assert DataDirectory(tmp_path).last_nodes() == {"--nodes": 0, "--gpus-per-node": 0, "--simulated-nodes": 0}
    settled = Settings(data_dir=tmp_path, nodes=2, simulated_nodes=3)
    assert settled.all_nodes == 5
    assert replace(settled, without=frozenset({"node"})).all_nodes == 0


def test_settings_reach_the_detached_platform_as_they_are(tmp_path):
    plain = Settings(data_dir=tmp_path)
    told = Settings(
        data_dir=tmp_path, port=1, nodes=2, gpus_per_node=3, cpu_per_node="4", memory_per_node="5Gi", simulated_nodes=6, sandbox_grace_s=7,
        without=frozenset({"node", "workloads"}), scheduler_conf=tmp_path / "volcano.conf", log_level="debug",
        engine_python=tmp_path / "python3",
    )  # fmt: skip
    assert unpack_settings(pack_settings(plain)) == plain
    assert unpack_settings(pack_settings(told)) == told
