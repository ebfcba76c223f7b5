"""What the engine knows and no object says: placements under way, phases not written yet, who sits out.

A snapshot carries it in named sections; each part of the engine that remembers something over cycles has one here, so
that a replay begins where the live scheduler stood. What a section holds is in names, uids and node names: rows and
other numbers of one process mean nothing in another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hekla.api.meta import Document
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.volcano import job_spec
from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.model import JobPhase, TaskStatus
from hekla.placement.reservations.reservation import Reservation

VERSION = 1
"""Of all sections together; grows when one of them changes its form."""

_UNDER_WAY = (TaskStatus.PIPELINED, TaskStatus.ALLOCATED, TaskStatus.BINDING)


class UnknownStateError(ValueError):
    """A snapshot remembers something that this version cannot restore; the text says what."""


@dataclass(frozen=True)
class Section:
    """One thing that is remembered."""

    save: Callable[[ClusterFeed], Any]
    """What there is to remember; an empty value if nothing, and the section is left out."""

    restore: Callable[[ClusterFeed, Any], None]
    """Into a feed that has been told of all objects."""


def saved(feed: ClusterFeed) -> Document:
    """All sections that hold anything."""
    sections = {name: section.save(feed) for name, section in SECTIONS.items()}
    return {"version": VERSION, **{name: kept for name, kept in sections.items() if kept}}


def restore(feed: ClusterFeed, state: Mapping[str, Any]) -> None:
    """Put a feed's cluster where the state says; UnknownStateError if part of it cannot be understood.

    An empty state is that of a scheduler that has just started.
    """
    version = state.get("version", VERSION)
    if version > VERSION:
        raise UnknownStateError(
            f"the engine's state in it is of version {version} and this hekla knows versions up to {VERSION}; "
            "use the hekla that took the snapshot, or a newer one"
        )
    unknown = sorted(state.keys() - SECTIONS.keys() - {"version"})
    if unknown:
        raise UnknownStateError(
            f'the engine\'s state in it has a section "{unknown[0]}", which this hekla does not know; '
            "use the hekla that took the snapshot, or a newer one"
        )
    for name, section in SECTIONS.items():
        if name in state:
            section.restore(feed, state[name])


# Placements under way


def _save_assumed(feed: ClusterFeed) -> list[Document]:
    """Tasks that have been given a node, or promised room on one, of which their pods do not know yet."""
    nodes = feed.cluster.nodes
    return [
        {"uid": uid, "node": nodes.name(task.row), **({"promisedAt": task.promised_at} if task.is_claim else {})}
        for uid, task in sorted(feed.cluster.tasks.items())
        if task.status in _UNDER_WAY and task.row >= 0
    ]


def _restore_assumed(feed: ClusterFeed, assumed: list[Document]) -> None:
    cluster = feed.cluster
    for one in assumed:
        task, row = cluster.tasks.get(one["uid"]), cluster.nodes.row_of.get(one["node"], -1)
        if task is None or task.job is None or row < 0 or task.row >= 0:
            continue
        if "promisedAt" in one:
            cluster.claim(task, row, one["promisedAt"])
            task.job.move(task, TaskStatus.PIPELINED)
        else:
            cluster.place(task, row)
            task.job.move(task, TaskStatus.BINDING)


_LEAVING = {"evictedAt": "evicted_at", "since": "leaving_since", "isOverdue": "is_overdue"}
"""What is remembered of a task that leaves, by the name in a snapshot."""


def _save_leaving(feed: ClusterFeed) -> list[Document]:
    """Tasks that are on their way out: since when, by whose word, and whether they were given up on."""
    tasks = [task for task in feed.cluster.tasks.values() if task.evicted_at is not None or task.goes]
    told = ((t.uid, {name: getattr(t, field) for name, field in _LEAVING.items()}) for t in tasks)
    kept = ({"uid": uid, **{name: value for name, value in one.items() if value}} for uid, one in told)
    return sorted((one for one in kept if len(one) > 1), key=lambda one: str(one["uid"]))


def _restore_leaving(feed: ClusterFeed, leaving: list[Document]) -> None:
    cluster = feed.cluster
    for one in leaving:
        task = cluster.tasks.get(one["uid"])
        if task is None or task.job is None or task.row < 0:
            continue
        if "evictedAt" in one and task.status is not TaskStatus.RELEASING:
            cluster.let_go(task)
            task.job.move(task, TaskStatus.RELEASING)
        if "isOverdue" in one and task.is_leaving:
            cluster.give_up_on(task)
        for name, field in _LEAVING.items():
            if name in one:
                setattr(task, field, one[name])


def _save_forsaken(feed: ClusterFeed) -> list[str]:
    """Tasks whose promise is off and that were not told yet."""
    return sorted(feed.cluster.forsaken)


def _restore_forsaken(feed: ClusterFeed, uids: list[str]) -> None:
    tasks = feed.cluster.tasks
    feed.cluster.forsaken = {uid: tasks[uid] for uid in uids if uid in tasks}


def _save_spent(feed: ClusterFeed) -> list[Document]:
    """What was evicted of disruption budgets since they last reported."""
    spent = sorted(feed.cluster.spent.items())
    return [{"namespace": namespace, "name": name, "pods": pods} for (namespace, name), pods in spent if pods]


def _restore_spent(feed: ClusterFeed, spent: list[Document]) -> None:
    for one in spent:
        feed.cluster.spent[one["namespace"], one["name"]] = one["pods"]


def _save_devices(feed: ClusterFeed) -> dict[str, list[int]]:
    """Which GPUs of their nodes pods have that share them: who came first got which, and no pod says so."""
    return {uid: list(task.devices) for uid, task in sorted(feed.cluster.tasks.items()) if task.devices}


def _restore_devices(feed: ClusterFeed, devices: Mapping[str, list[int]]) -> None:
    table = feed.cluster.nodes.devices
    having = [task for task in feed.cluster.tasks.values() if task.devices and task.uid in devices]
    for task in having:
        table.give(task.row, task.devices, task.shape.gpu_milli)
    for task in having:
        task.devices = tuple(devices[task.uid])
        table.take(task.row, task.devices, task.shape.gpu_milli)


# Memories of evictions, of measurements and of what was had


def _save_precedence(feed: ClusterFeed) -> Document:
    """Who made way for whom: nobody does so in turn."""
    known = feed.cluster.precedence
    pairs = [{"uid": second, "for": first, "at": at} for second, first, at in known.pairs()]
    return {"pairs": pairs, "isStale": known.is_stale} if pairs else {}


def _restore_precedence(feed: ClusterFeed, precedence: Document) -> None:
    known = feed.cluster.precedence
    for one in precedence["pairs"]:
        known.note(one["for"], one["uid"], one["at"])
    if precedence["isStale"]:
        known.world_changed()


def _save_reservations(feed: ClusterFeed) -> list[Document]:
    """The room that is kept for jobs that do not fit yet, and from when."""
    return [
        {
            "uid": uid, "startAt": kept.start_s, "toldAt": kept.told_s, "isImagined": kept.is_imagined,
            "rooms": [{"node": node, "holds": dict(sorted(room.items()))} for node, room in sorted(kept.rooms.items())],
        }
        for uid, kept in sorted(feed.cluster.reservations.items())
    ]  # fmt: skip


def _restore_reservations(feed: ClusterFeed, reservations: list[Document]) -> None:
    for one in reservations:
        job = feed.cluster.jobs.get(one["uid"])
        if job is not None:
            feed.cluster.reservations[job.uid] = Reservation(
                uid=job.uid, job=job.told, priority=job.spec.priority, start_s=one["startAt"],
                told_s=one["toldAt"] if "toldAt" in one else one["startAt"],  # snapshots of older versions have none
                rooms={room["node"]: room["holds"] for room in one["rooms"]}, is_imagined=one["isImagined"],
            )  # fmt: skip


def _save_let_in(feed: ClusterFeed) -> list[str]:
    """Jobs that entered since room was to be kept for them."""
    return sorted(feed.cluster.let_in)


def _restore_let_in(feed: ClusterFeed, uids: list[str]) -> None:
    feed.cluster.let_in = {uid for uid in uids if uid in feed.cluster.jobs}


def _save_out_of_reach(feed: ClusterFeed) -> list[str]:
    """Jobs for which room is not kept as they will not fit: they are planned again in this order."""
    return list(feed.cluster.out_of_reach)


def _restore_out_of_reach(feed: ClusterFeed, uids: list[str]) -> None:
    feed.cluster.out_of_reach = {uid: None for uid in uids if uid in feed.cluster.jobs}


def _save_nominated(feed: ClusterFeed) -> Document:
    """Tasks whose nominations are not promises of ours yet. Told even if there are none: pods remember old ones."""
    return {"uids": sorted(feed.cluster.nominated)}


def _restore_nominated(feed: ClusterFeed, nominated: Document) -> None:
    tasks = feed.cluster.tasks
    feed.cluster.nominated = {uid: tasks[uid] for uid in nominated["uids"] if uid in tasks}


def _save_due(feed: ClusterFeed) -> dict[str, float]:
    """When plug-ins that work once in a period last did so."""
    return dict(sorted(feed.cluster.last_due.items()))


def _restore_due(feed: ClusterFeed, due: Mapping[str, float]) -> None:
    feed.cluster.last_due = dict(due)


def _save_usages(feed: ClusterFeed) -> list[Document]:
    """What nodes were measured to use."""
    known = sorted(feed.cluster.nodes.usages.known.items())
    return [{"node": name, "cpu": use.cpu, "memory": use.memory, "at": use.at_s} for name, use in known]


def _restore_usages(feed: ClusterFeed, usages: list[Document]) -> None:
    for one in usages:
        feed.cluster.put_usage(one["node"], NodeUsage(cpu=one["cpu"], memory=one["memory"], at_s=one["at"]))


def _save_past(feed: ClusterFeed) -> Document:
    """What queues had, less what is forgotten of it; whole numbers as text, for they grow beyond what JSON holds."""
    ledger = feed.cluster.ledger
    if ledger.clock is None:
        return {}
    queues = [
        {
            "queue": name, "noted": account.noted_us, "known": account.known_us,
            "had": {resource: str(amount) for resource, amount in sorted(account.had.items())},
        }
        for name, account in sorted(ledger.accounts.items())
    ]  # fmt: skip
    return {"now": ledger.clock.now_us, "queues": queues}


def _restore_past(feed: ClusterFeed, past: Document) -> None:
    """Only where the configuration that decides asks for the past: another one may not."""
    ledger = feed.cluster.ledger
    if ledger.clock is None:
        return
    ledger.clock.now_us = past["now"]
    for one in past["queues"]:
        account = ledger.of(one["queue"])
        account.had = {resource: int(amount) for resource, amount in one["had"].items()}
        account.noted_us, account.known_us = one["noted"], one["known"]


# Jobs


def _save_phases(feed: ClusterFeed) -> dict[str, str]:
    """Jobs that have been let in, or have gone on, while their PodGroups do not say so yet."""
    jobs = feed.cluster.jobs
    told = {
        group.metadata.uid: job_spec(group, feed).phase
        for group in feed.groups.values()
        if group.metadata.uid in jobs and jobs[group.metadata.uid].phase.value != group.status.phase
    }
    return {uid: jobs[uid].phase.value for uid, phase in sorted(told.items()) if jobs[uid].phase is not phase}


def _restore_phases(feed: ClusterFeed, phases: Mapping[str, str]) -> None:
    for uid, phase in phases.items():
        job = feed.cluster.jobs.get(uid)
        if job is not None:
            job.phase = JobPhase(phase)


def _save_held_back(feed: ClusterFeed) -> list[str]:
    """Jobs that sit out because a bind of theirs was refused."""
    return sorted(uid for uid, job in feed.cluster.jobs.items() if job.is_held)


def _restore_held_back(feed: ClusterFeed, uids: list[str]) -> None:
    for uid in uids:
        job = feed.cluster.jobs.get(uid)
        if job is not None:
            job.sit_out()


def _save_network(feed: ClusterFeed) -> Document:
    """Whether the HyperNodes had been read."""
    return {} if feed.cluster.topology.is_known else {"isKnown": False}


def _restore_network(feed: ClusterFeed, network: Document) -> None:
    feed.cluster.topology.is_known = network["isKnown"]


SECTIONS: Mapping[str, Section] = {
    "assumed": Section(_save_assumed, _restore_assumed),
    "leaving": Section(_save_leaving, _restore_leaving),
    "forsaken": Section(_save_forsaken, _restore_forsaken),
    "budgetsSpent": Section(_save_spent, _restore_spent),
    "devices": Section(_save_devices, _restore_devices),
    "precedence": Section(_save_precedence, _restore_precedence),
    "reservations": Section(_save_reservations, _restore_reservations),
    "letIn": Section(_save_let_in, _restore_let_in),
    "outOfReach": Section(_save_out_of_reach, _restore_out_of_reach),
    "nominated": Section(_save_nominated, _restore_nominated),
    "due": Section(_save_due, _restore_due),
    "usages": Section(_save_usages, _restore_usages),
    "past": Section(_save_past, _restore_past),
    "phases": Section(_save_phases, _restore_phases),
    "heldBack": Section(_save_held_back, _restore_held_back),
    "network": Section(_save_network, _restore_network),
}
"""By name. Add one when the engine begins to remember something that no object says."""
