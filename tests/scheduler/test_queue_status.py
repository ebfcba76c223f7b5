import msgspec

from hekla.api.volcano import scheduling
from hekla.scheduler.queue_status import queue_commands
from hekla.testing.cluster import World


def queue(name: str, allocated: dict[str, str] | None = None) -> scheduling.Queue:
    document = {"metadata": {"name": name}, "status": {"allocated": allocated or {}}}
    return msgspec.convert(document, scheduling.Queue)


def test_a_queue_says_what_it_holds_and_those_above_say_so_too() -> None:
    world = World()
    world.node("n1", cpu=4, memory=8)
    world.queue("root", parent="")
    world.queue("team")
    world.job("a", tasks=2, cpu=1.5, memory=1, more={"queue": "team"})
    world.schedule()
    queues = {name: queue(name) for name in ("root", "team", "default")}
    told = {command.target.name: command.status for command in queue_commands(world.cluster, queues)}
    held = {"allocated": {"cpu": "3", "memory": "2Gi", "pods": "2"}}
    assert told == {"root": held, "team": held}


def test_what_is_said_already_is_not_said_again_and_what_is_gone_is_taken_away() -> None:
    world = World()
    queues = {"default": queue("default", {"cpu": "1"})}
    (command,) = queue_commands(world.cluster, queues)
    assert command.status == {"allocated": {"cpu": None}}
    assert not list(queue_commands(world.cluster, {"default": queue("default")}))


def test_queues_in_a_ring_do_not_hang() -> None:
    world = World()
    world.node("n1", cpu=4)
    world.queue("a", parent="b")
    world.queue("b", parent="a")
    world.job("j", cpu=1, more={"queue": "a"})
    world.schedule()
    assert len(list(queue_commands(world.cluster, {"a": queue("a"), "b": queue("b")}))) == 2
