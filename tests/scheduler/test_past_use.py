"""What queues had in the past outlives the scheduler: written to the queue, read at the next start, counted once."""

import msgspec

from hekla.api.volcano.scheduling import Queue
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.volcano import PAST_USE
from hekla.placement.cluster import Cluster
from hekla.placement.model import TaskStatus
from hekla.scheduler.queue_status import past_commands
from hekla.testing.cluster import World

HOUR_S = 3600.0


def queue(text: str = "") -> Queue:
    annotations = {PAST_USE: text} if text else {}
    return msgspec.convert({"metadata": {"name": "a", "uid": "a", "annotations": annotations}, "spec": {}}, Queue)


def started_at(wall_s: float, text: str) -> Cluster:
    """A cluster of a scheduler that starts at this time and finds the queue with this annotation."""
    cluster = Cluster()
    cluster.ledger.keep_past(HOUR_S)
    cluster.ledger.tell_time(wall_s)
    ClusterFeed(cluster, scheduler_names=["volcano"]).on_queue(None, queue(text))
    return cluster


def had(cluster: Cluster) -> int:
    assert cluster.ledger.clock is not None
    return cluster.ledger.of("a").had_by(cluster.ledger.clock.now_us).get("cpu", 0) // 1_000_000


def written() -> str:
    world = World(plugins=(("gang", ("fair-share", {"halfLife": "1h"})), ("predicates",)))
    world.node("n1", cpu=4)
    world.queue("a")
    world.tell_time(1000.0)
    task = world.running("r", "n1", cpu=4, more={"queue": "a"})
    world.tell_time(1000.0 + HOUR_S)
    world.finish("r-0")
    assert task.status is TaskStatus.SUCCEEDED
    (patch,) = past_commands(world.cluster, {"a": queue()})
    text: str = patch.patch["metadata"]["annotations"][PAST_USE]
    return text


def test_the_next_scheduler_goes_on_with_what_was_written_faded_by_the_time_between() -> None:
    text = written()
    at_once, later = had(started_at(1001.0 + HOUR_S, text)), had(started_at(1000.0 + 2 * HOUR_S, text))
    assert at_once > 0
    assert abs(later * 2 - at_once) <= at_once // 1000


def test_what_it_wrote_itself_is_not_counted_again() -> None:
    cluster = started_at(500.0, "")
    cluster.ledger.tell_time(2000.0 + HOUR_S)
    ClusterFeed(cluster, scheduler_names=["volcano"]).on_queue(queue(), queue(written()))
    assert had(cluster) == 0


def test_what_cannot_be_read_counts_as_nothing() -> None:
    assert had(started_at(9000.0, "yesterday")) == 0


def test_it_is_written_every_few_minutes_at_most() -> None:
    cluster = started_at(1010.0 + HOUR_S, text := written())
    assert list(past_commands(cluster, {"a": queue(text)})) == []
    cluster.ledger.tell_time(1400.0 + HOUR_S)
    assert len(list(past_commands(cluster, {"a": queue(text)}))) == 1
