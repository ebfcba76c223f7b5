"""Reconciles ModelBoosters: one object from which a model is fetched, served, routed, and scaled if it asks for that.

    not there                             made
    made from something else              brought up to date; a route whose name for clients changed is made anew
    made by Kthena from this very spec    left alone, so that taking over rolls nothing
    of another backend                    removed

`model_booster_children.py` says what the children are, `model_booster_pods.py` what is in their pods.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from hekla.api.core import Pod
from hekla.api.kthena import AutoscalingPolicy, ModelBooster, ModelRoute, ModelServer, ModelServing, labels
from hekla.api.meta import Document, Resource
from hekla.api.volcano.topology import StrictCondition
from hekla.kube.commands import Command, Create, Delete, Patch, SetStatus, target_of
from hekla.kube.quota_waiting import is_of_quota
from hekla.kube.reconcile import Reconciler, World, reconciler
from hekla.kube.timestamps import rfc3339
from hekla.serving.engine_arguments import ArgumentError
from hekla.serving.model_booster_children import children
from hekla.serving.model_booster_pods import Images
from hekla.serving.serving_status import MOST_WORDS

FETCHED = "Fetched"
"""The condition, where there is something to say: the simulator serves a model whose bucket does not exist like any other."""
_IS_REFUSED = "the API server refuses what it needs: "
OWNED: tuple[type[Resource], ...] = (ModelServing, ModelServer, ModelRoute, AutoscalingPolicy)


def tell_refusal(booster: ModelBooster, refused: Command, why: str, world: World, now: datetime) -> Iterator[Command]:
    """Say why it is not ready. Of a full quota once: its numbers change with each that comes and goes."""
    active = next((one for one in booster.status.conditions if one.type == "Active"), None)
    is_told = active is not None and _IS_REFUSED in active.message and is_of_quota(active.message) and is_of_quota(why)
    if not _is_up(booster, world) and not is_told:
        yield from _set_status(booster, world, now, refused=why)


@reconciler(ModelBooster, owns=OWNED, reads=(Pod,), when_refused=tell_refusal)
def reconcile_model_booster(booster: ModelBooster, world: World, now: datetime) -> Iterator[Command]:
    """Bring one ModelBooster a step closer."""
    yield from _bring_closer(booster, world, now, Images())


def with_images(images: Images) -> Reconciler:
    """The same with other images around the engine."""

    def decide(booster: ModelBooster, world: World, now: datetime) -> Iterator[Command]:
        return _bring_closer(booster, world, now, images)

    return replace(reconcile_model_booster, decide=decide)


def _bring_closer(booster: ModelBooster, world: World, now: datetime, images: Images) -> Iterator[Command]:
    if booster.metadata.deletion_timestamp is not None:
        return
    try:
        wanted = children(booster, images)
    except ArgumentError as error:
        yield from _set_status(booster, world, now, problem=str(error))
        return
    for kind, document in wanted:
        yield from _keep(booster, world, kind, document)
    yield from _strangers(booster, world, wanted)
    yield from _set_status(booster, world, now)


def _keep(booster: ModelBooster, world: World, kind: type[Resource], document: Document) -> Iterator[Command]:
    metadata = document["metadata"]
    found = world.get(kind, booster.metadata.namespace, metadata["name"])
    if found is None or not any(owner.uid == booster.metadata.uid for owner in found.metadata.owner_references):
        yield Create(kind, document, is_told_of_when_refused=True)
        return
    if found.metadata.labels.get(labels.BOOSTER_REVISION) == metadata["labels"][labels.BOOSTER_REVISION]:
        return
    is_seen = booster.status.observed_generation == booster.metadata.generation
    if is_seen and kind is not AutoscalingPolicy:
        return  # made from this spec, if by another controller or an earlier release; a policy is made from annotations
    if isinstance(found, ModelRoute) and found.spec.model_name != document["spec"]["modelName"]:
        yield Delete(target_of(found), reason="modelName cannot be changed")
        return
    spec = dict(document["spec"])
    if isinstance(found, ModelServing) and found.metadata.name in _scaled(booster, world):
        del spec["replicas"]
    yield Patch(target_of(found), {"metadata": {"labels": metadata["labels"]}, "spec": spec})


def _scaled(booster: ModelBooster, world: World) -> Iterator[str]:
    """ModelServings whose replicas a policy of ours keeps."""
    yield from (one.metadata.name for one in world.owned(AutoscalingPolicy, booster.metadata.uid))


def _strangers(
    booster: ModelBooster, world: World, wanted: Sequence[tuple[type[Resource], Document]]
) -> Iterator[Command]:
    names = {(kind, document["metadata"]["name"]) for kind, document in wanted}
    for kind in OWNED:
        for one in world.owned(kind, booster.metadata.uid):
            if (kind, one.metadata.name) not in names and one.metadata.deletion_timestamp is None:
                yield Delete(target_of(one), reason="the ModelBooster has another backend or asks for it no more")


def _set_status(
    booster: ModelBooster, world: World, now: datetime, *, problem: str = "", refused: str = ""
) -> Iterator[Command]:
    told = {one.type: one for one in booster.status.conditions}
    wanted = [("Initialized", True, "ModelCreating", "ModelBooster initialized")]
    is_up = not problem and _is_up(booster, world)
    missing = [_IS_REFUSED + refused[:MOST_WORDS]] if refused else _what_is_missing(booster, world)
    not_yet = ("ModelProcessing", "; ".join(["ModelBooster not ready yet", *missing]))
    wanted.append(("Active", is_up, *(("ModelAvailable", "ModelBooster is ready") if is_up else not_yet)))
    if problem:
        wanted.append(("Failed", True, "ModelAbnormal", problem))
    elif "Failed" in told:
        wanted.append(("Failed", False, "ModelAbnormal", "nothing is wrong any more"))
    if why := _unfetched(booster, world):
        wanted.append((FETCHED, False, "EngineStandIn", why))
    elif is_up and FETCHED in told:
        wanted.append((FETCHED, True, "Fetched", f"engines have what is at {booster.spec.backend.model_uri}"))
    conditions = [
        _condition(told.get(kind), kind, holds, reason, message, now) for kind, holds, reason, message in wanted
    ]
    # what was made from this generation is known by it, so a spec that cannot be made is not yet looked at
    observed = booster.status.observed_generation if problem or refused else booster.metadata.generation
    if conditions != booster.status.conditions or observed != booster.status.observed_generation:
        written = [_written(one) for one in conditions]
        yield SetStatus(target_of(booster), {"conditions": written, "observedGeneration": observed})


def _unfetched(booster: ModelBooster, world: World) -> str:
    """That nobody has looked for the model, as an engine simulator serves; empty: engines had to have it."""
    for serving in world.owned(ModelServing, booster.metadata.uid):
        for pod in world.owned(Pod, serving.metadata.uid):
            for one in pod.status.conditions:
                if one.type == labels.ENGINE_STAND_IN and one.status == "True":
                    source = booster.spec.backend.model_uri
                    return (
                        f"nothing was fetched from {source}, and whether it is there was not looked at: {one.message}"
                    )
    return ""


def _is_up(booster: ModelBooster, world: World) -> bool:
    servings = world.owned(ModelServing, booster.metadata.uid)
    return bool(servings) and all(_is_available(one) for one in servings)


def _what_is_missing(booster: ModelBooster, world: World) -> Iterator[str]:
    """What its ModelServings say of themselves."""
    for serving in world.owned(ModelServing, booster.metadata.uid):
        for one in serving.status.conditions:
            if not _is_available(serving) and one.status == "True" and one.message:
                yield f"ModelServing {serving.metadata.name}: {one.message}"


def _is_available(serving: ModelServing) -> bool:
    is_seen = serving.status.observed_generation == serving.metadata.generation
    return is_seen and any(one.type == "Available" and one.status == "True" for one in serving.status.conditions)


def _condition(
    before: StrictCondition | None, kind: str, holds: bool, reason: str, message: str, now: datetime
) -> StrictCondition:
    status = "True" if holds else "False"
    if before is not None and (before.status, before.reason, before.message) == (status, reason, message):
        return before
    since = before.last_transition_time if before is not None and before.status == status else rfc3339(now)
    return StrictCondition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)


def _written(one: StrictCondition) -> Document:
    return {key: value for key, value in msgspec.to_builtins(one).items() if value not in (None, "")}
