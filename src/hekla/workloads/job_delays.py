"""Actions that wait for their policy's timeout, kept in an annotation of the job so that they outlive the controller.

A delayed action is forgotten when its cause is: the pod that was lost runs again, the pod that was pending is not, the job
has been killed as a whole. Being pending needs no note, because the pod says since when.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from hekla.api.volcano.bus import Action, Event
from hekla.kube.commands import Command, Patch, target_of
from hekla.workloads import keys
from hekla.workloads.job_events import Happening
from hekla.workloads.job_policies import PolicyAnswer
from hekla.workloads.job_status import parsed_time, rfc3339
from hekla.workloads.job_view import JobView


class DelayNote(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One delayed action as it is kept."""

    event: Event
    action: Action
    due: str
    version: int
    task: str = ""
    pod: str = ""
    partition: str = ""

    def happening(self) -> Happening:
        """The event that it waits for."""
        return Happening(event=self.event, task=self.task, pod=self.pod, partition=self.partition)


Notes = Mapping[str, DelayNote]
_DECODER = msgspec.json.Decoder(dict[str, DelayNote])


@dataclass(frozen=True)
class Delays:
    """Which delayed actions are due, which still wait."""

    due: tuple[tuple[Happening, PolicyAnswer], ...]
    waiting: Notes
    next_in: timedelta | None


def delays(view: JobView, seen: list[tuple[Happening, PolicyAnswer]]) -> Delays:
    """Take what happened now, and what is noted, and tell what is due; an event counts from when it was first seen."""
    notes = {key: note for key, note in _noted(view).items() if _still_holds(view, note)}
    for happening, answer in seen:
        since = parsed_time(happening.since) if happening.since else view.now
        note = _note(view, happening, answer, since + answer.delay)
        notes.setdefault(_key(happening), note)
    due = {key: note for key, note in notes.items() if parsed_time(note.due) <= view.now}
    waiting = {key: note for key, note in notes.items() if key not in due}
    soonest = min((parsed_time(note.due) for note in waiting.values()), default=None)
    return Delays(
        due=tuple((note.happening(), PolicyAnswer(note.action)) for note in due.values()),
        waiting=waiting,
        next_in=soonest - view.now if soonest else None,
    )


def remember(view: JobView, waiting: Notes) -> Iterator[Command]:
    """Write down what waits, if that differs from what is written."""
    kept = {key: note for key, note in waiting.items() if note.event is not Event.POD_PENDING}
    text = msgspec.json.encode(kept, order="sorted").decode() if kept else None
    if view.job.metadata.annotations.get(keys.DELAYED_ACTIONS) != text:
        yield Patch(target_of(view.job), {"metadata": {"annotations": {keys.DELAYED_ACTIONS: text}}})


def _noted(view: JobView) -> dict[str, DelayNote]:
    text = view.job.metadata.annotations.get(keys.DELAYED_ACTIONS)
    if not text:
        return {}
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError:
        # Somebody wrote something else there: what still holds will be noted anew.
        return {}


def _still_holds(view: JobView, note: DelayNote) -> bool:
    if note.version != view.job.status.version:
        return False
    pod = view.by_name.get(note.pod)
    runs = pod is not None and pod.status.phase == "Running" and not view.is_leaving(pod)
    return not (note.event in (Event.POD_FAILED, Event.POD_EVICTED) and runs)


def _note(view: JobView, happening: Happening, answer: PolicyAnswer, due: datetime) -> DelayNote:
    return DelayNote(
        event=happening.event,
        action=answer.action,
        due=rfc3339(due),
        version=view.job.status.version,
        task=happening.task,
        pod=happening.pod,
        partition=happening.partition,
    )


def _key(happening: Happening) -> str:
    return f"{happening.event}/{happening.task}/{happening.pod}"
