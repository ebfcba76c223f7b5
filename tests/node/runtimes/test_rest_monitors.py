"""Firecracker and Cloud Hypervisor are told what their API documents say: a program that listens as they do records every request.

Neither runs here (guests stand still under this kind of KVM), so what is shown is the conversation, over real HTTP and a real vsock handshake.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from hekla.node.runtimes.microvm.cloud_hypervisor import CloudHypervisor
from hekla.node.runtimes.microvm.firecracker import Firecracker
from hekla.node.runtimes.microvm.image import Image
from hekla.node.runtimes.microvm.monitor import COMMAND_LINE, MachineError, Plan
from hekla.node.runtimes.microvm.restful import Restful

MONITOR = '''
import json, os, socket, sys, threading, time
api, notes = sys.argv[2], sys.argv[0] + ".heard"

def guest(path):
    """As a guest that listens on port 1024: the monitor's handshake, then an echo."""
    door = socket.socket(socket.AF_UNIX); door.bind(path); door.listen()
    while True:
        made, _ = door.accept()
        line = made.makefile("rb").readline()
        if line == b"CONNECT 1024\\n":
            made.sendall(b"OK 1073741824\\n")
            made.sendall(b"the guest speaks")

def heard(method, path, body):
    with open(notes, "a") as file:
        file.write(json.dumps([method, path, body]) + "\\n")
    place = body and (body.get("uds_path") or body.get("vsock", {}).get("socket") or body.get("vsock_override", {}).get("uds_path"))
    if path.endswith("vm.restore"):
        place = json.load(open(body["source_url"][7:] + "/config.json"))["vsock"]["socket"]
    if place:
        threading.Thread(target=guest, args=(place,), daemon=True).start()
    if path == "/snapshot/create":
        open(body["snapshot_path"], "w").write("devices"); open(body["mem_file_path"], "w").write("memory")
    if path.endswith("vm.snapshot"):
        where = body["destination_url"][7:]
        open(where + "/config.json", "w").write(json.dumps({"vsock": {"cid": 3, "socket": "/gone"}, "cpus": {}}))
        open(where + "/state.json", "w").write("{}"); open(where + "/memory-ranges", "w").write("memory")

door = socket.socket(socket.AF_UNIX); door.bind(api)
if os.path.exists(sys.argv[0] + ".slow"):
    time.sleep(0.3)
door.listen()
while True:
    made, _ = door.accept()
    file = made.makefile("rb")
    first = file.readline().decode()
    if not first:  # who only looked whether anybody listens
        made.close()
        continue
    method, path, _ = first.split()
    length = 0
    while (line := file.readline().strip()):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    body = json.loads(file.read(length)) if length else None
    if os.path.exists(sys.argv[0] + ".refuses"):
        words = json.dumps({"fault_message": "no such thing"}).encode()
        made.sendall(b"HTTP/1.1 400 Bad Request\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(words) + words)
    else:
        heard(method, path, body)
        made.sendall(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")
    made.close()
'''


@pytest.fixture
def place(tmp_path):
    """A short path for sockets, an image, and the monitor."""
    image = tmp_path / "image"
    image.mkdir()
    for name in ("vmlinuz", "vmlinux", "initrd"):
        (image / name).write_bytes(b"")
    (tmp_path / "monitor").write_text(MONITOR)
    return tmp_path


def heard(place: Path) -> list[list[object]]:
    """What was asked, with the places of files named by what they are."""
    lines = (place / "monitor.heard").read_text().replace(str(place), "").splitlines()
    return [json.loads(line) for line in lines]


def talk(place, dialect, story):
    async def told():
        await story(Restful(dialect, (sys.executable, str(place / "monitor")), Image(place / "image", place), place))

    asyncio.run(told())


def names_of(requests: list[list[object]]) -> list[str]:
    return [f"{method} {path}" for method, path, _ in requests]


PLAN = Plan(name="m1", memory_mib=256)


def test_firecracker_boots_a_machine_part_by_part(place):
    async def story(monitors):
        machine = await monitors.boot(PLAN)
        os.set_blocking(machine.link, True)
        assert os.read(machine.link, 100) == b"the guest speaks"
        os.close(machine.link)
        await machine.pause()
        await machine.resume()
        await machine.end()

    talk(place, Firecracker(), story)
    requests = heard(place)
    assert names_of(requests) == [
        "PUT /machine-config", "PUT /boot-source", "PUT /vsock", "PUT /entropy", "PUT /actions", "PATCH /vm", "PATCH /vm",
    ]  # fmt: skip
    bodies = {path: body for _, path, body in requests[:5]}
    assert bodies["/machine-config"] == {"vcpu_count": 1, "mem_size_mib": 256}
    assert bodies["/boot-source"]["kernel_image_path"] == "/image/vmlinux"
    assert bodies["/boot-source"]["boot_args"] == COMMAND_LINE
    assert bodies["/boot-source"]["initrd_path"].startswith("/initrd.")
    assert bodies["/vsock"]["guest_cid"] == 3
    assert bodies["/actions"] == {"action_type": "InstanceStart"}
    assert [body for _, _, body in requests[5:]] == [{"state": "Paused"}, {"state": "Resumed"}]


def test_a_monitor_that_has_its_socket_and_does_not_listen_yet_is_waited_for(place):
    """Its first request was refused: a busy machine may come between the two for long."""
    (place / "monitor.slow").touch()

    async def story(monitors):
        await (await monitors.boot(PLAN)).end()

    talk(place, Firecracker(), story)
    assert names_of(heard(place))[0] == "PUT /machine-config"


def test_firecracker_copies_a_machine_that_is_its_own_under_another_socket(place):
    async def story(monitors):
        machine = await monitors.boot(PLAN)
        await machine.pause()
        golden = await monitors.golden(PLAN, machine)
        copy = await monitors.copy(PLAN, golden)
        await copy.end()
        golden.close()

    talk(place, Firecracker(), story)
    requests = heard(place)
    assert names_of(requests)[-5:] == [
        "PATCH /vm", "PUT /snapshot/create", "PUT /snapshot/load", "PATCH /vm", "PATCH /vm",
    ]  # fmt: skip
    created, loaded = (body for _, path, body in requests if "snapshot" in path)
    assert created["snapshot_type"] == "Full"
    assert loaded["snapshot_path"] == created["snapshot_path"]
    assert loaded["mem_backend"] == {"backend_type": "File", "backend_path": created["mem_file_path"]}
    assert loaded["resume_vm"] is False
    booted = next(body for _, path, body in requests if path == "/vsock")
    assert loaded["vsock_override"]["uds_path"] not in ("", booted["uds_path"])


def test_cloud_hypervisor_boots_writes_down_and_reads_back(place):
    async def story(monitors):
        machine = await monitors.boot(PLAN)
        await machine.pause()
        with open(place / "written", "w+b") as written:
            await machine.write_down(written.fileno())
            written.seek(0)
            again = await monitors.read_back(PLAN, written.fileno())
        await again.resume()
        await asyncio.gather(machine.end(), again.end())

    talk(place, CloudHypervisor(), story)
    requests = heard(place)
    assert names_of(requests) == [
        f"PUT /api/v1/vm.{name}"
        for name in ("create", "boot", "pause", "snapshot", "restore", "resume", "pause", "resume")
    ]
    made = requests[0][2]
    assert made["payload"]["kernel"] == "/image/vmlinux"
    assert made["memory"] == {"size": 256 << 20}
    assert made["vsock"]["cid"] == 3
    assert requests[4][2]["prefault"] is False


def test_what_a_monitor_refuses_is_told_in_its_own_words_and_nothing_is_left(place):
    async def story(monitors):
        (place / "monitor.refuses").touch()
        with pytest.raises(MachineError, match=r"PUT /machine-config is refused \(400\): .*fault_message"):
            await monitors.boot(PLAN)

    talk(place, Firecracker(), story)
    assert not list(place.glob("m1-*"))


def test_a_snapshot_that_leads_outside_is_not_read_back(place):
    async def story(monitors):
        for head in (b'[["../../escaped", 4]]', b"[[1]]", b"junk"):
            (place / "written").write_bytes(head.ljust(4096) + b"evil")
            with open(place / "written", "rb") as written, pytest.raises(MachineError, match="no snapshot"):
                await monitors.read_back(PLAN, written.fileno())

    talk(place, CloudHypervisor(), story)
    assert not (place.parent / "escaped").exists()
