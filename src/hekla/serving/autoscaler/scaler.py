"""The autoscaler's loop: every 15 s it measures what each policy scales, decides, and carries that out.

Policies are looked at side by side, each with a deadline, so that one whose pods do not answer starves none. A ModelServing
without replicas that somebody asks for is looked at at once, and so is a policy that was written, so that its status says
within a moment what is wrong with it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import structlog
from prometheus_client import Counter

from hekla.api.core import Pod
from hekla.api.kthena import AutoscalingPolicy, ModelServing, labels
from hekla.api.meta import Document, Resource
from hekla.api.volcano import PodGroup
from hekla.kube.client import PatchType
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.commands import Event, Target, target_of
from hekla.kube.errors import ApiError, ConflictError, InvalidError, KubeError
from hekla.kube.events import EventRecorder
from hekla.kube.informer import Informers
from hekla.serving.autoscaler.collector import Collector
from hekla.serving.autoscaler.decision import (
    HISTORY,
    Decision,
    Measured,
    Scaling,
    decide,
    with_refused,
    write_histories,
)
from hekla.serving.autoscaler.measuring import looks, measured, without_source
from hekla.serving.autoscaler.policy_status import is_worth_writing, status_of
from hekla.serving.autoscaler.rivals import key_of, rivals
from hekla.serving.autoscaler.units import Unit, units_of
from hekla.wire.client import HttpClient

log = structlog.get_logger(__name__)

PERIOD_S = 15.0
DEADLINE_S = 10.0
COMPONENT = "autoscaler"
FOLLOWED: tuple[type[Resource], ...] = (AutoscalingPolicy, ModelServing, Pod, PodGroup)

SCALINGS = Counter("hekla_autoscaler_scalings_total", "Changes of replicas.", ["direction"])


class Autoscaler:
    """Scales what policies name."""

    def __init__(
        self,
        informers: Informers,
        *,
        clock: Clock | None = None,
        period_s: float = PERIOD_S,
        http: HttpClient | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._client = informers.client
        self._http = http or HttpClient()
        self._collector = Collector(self._http)
        self._events = EventRecorder(informers.client, self._clock, component=COMPONENT)
        self._period_s = period_s
        self._policies, self._servings = informers.of(AutoscalingPolicy), informers.of(ModelServing)
        self._pods, self._groups = informers.of(Pod), informers.of(PodGroup)
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        for informer in (self._policies, self._servings, self._pods, self._groups):
            await informer.synced()
        self._servings.add_handler(self._on_serving)
        self._policies.add_handler(self._on_policy)
        recorder = asyncio.create_task(self._events.run(), name="autoscaler events")
        try:
            while True:
                self._wanted.clear()  # before the look: what is asked for while it waits for slow engines is not lost
                await self.look()
                await self._rest()
        finally:
            self._servings.remove_handler(self._on_serving)
            self._policies.remove_handler(self._on_policy)
            recorder.cancel()
            await self._http.close()

    async def look(self) -> None:
        """One look at every policy."""
        policies = [one for one in self._policies.cache.list() if one.metadata.deletion_timestamp is None]
        taken = rivals(policies)
        await asyncio.gather(*(self._look_at_in_time(policy, taken.get(key_of(policy), "")) for policy in policies))
        self._collector.forget_old(self._clock.elapsed_s())

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._period_s):
                await self._wanted.wait()

    def _on_serving(self, old: ModelServing | None, new: ModelServing | None) -> None:
        """A request waits for a model that has no replicas: that is no matter of 15 seconds."""
        before = old.metadata.annotations.get(labels.WANTED_AT) if old is not None else None
        if new is not None and new.metadata.annotations.get(labels.WANTED_AT) != before and _sleeps(new):
            self._wanted.set()

    def _on_policy(self, old: AutoscalingPolicy | None, new: AutoscalingPolicy | None) -> None:
        if new is not None and (old is None or old.spec != new.spec):
            self._wanted.set()

    async def _look_at_in_time(self, policy: AutoscalingPolicy, rival: str) -> None:
        about = {"policy": policy.metadata.name, "namespace": policy.metadata.namespace}
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._look_at(policy, rival)
        except ConflictError:
            log.debug("changed meanwhile; it is looked at again", **about)
        except (KubeError, TimeoutError) as error:
            log.warning("policy could not be followed", why=str(error) or "it took too long", **about)
        except Exception:  # the task boundary: a mistake with one policy must not stop the rest
            log.exception("policy could not be followed", **about)

    async def _look_at(self, policy: AutoscalingPolicy, rival: str) -> None:
        now = self._clock.now()
        if rival:
            await self._write(policy, Decision(outcomes=[], histories={}, rival=rival), now)
            return
        found = [(unit, await self._measure(unit)) for unit in units_of(policy)]
        now = self._clock.now()
        decision = decide(policy, {unit.key: seen for unit, seen in found if seen is not None}, now)
        said = {one.unit.key: await self._scale(policy, one) for one in decision.scalings}
        refused = {key: why for key, why in said.items() if why is not None}
        await self._write(policy, with_refused(policy, decision, refused), now)

    async def _measure(self, unit: Unit) -> Measured | None:
        serving = self._servings.cache.get(unit.namespace, unit.serving)
        if serving is None:
            return None
        pods = self._pods.cache.list(unit.namespace, {labels.NAME: unit.serving})
        groups = self._groups.cache.list(unit.namespace, {labels.NAME: unit.serving})
        sources = {
            name: source.prometheus for name, source in unit.sources.items()
            if source.prometheus is not None and name in unit.targets
        }  # fmt: skip
        seen, (whole, dumb) = await asyncio.gather(
            self._collector.ask(looks(unit, pods), self._clock.elapsed_s()), self._collector.ask_prometheus(sources)
        )
        whys = {**without_source(unit), **seen.whys, **dumb}
        unread = next((whys[name] for name in unit.targets if name in whys), "")
        return measured(unit, serving, pods, groups, seen.answers, whole, self._clock.now(), unread)

    async def _scale(self, policy: AutoscalingPolicy, scaling: Scaling) -> str | None:
        """Change the replicas; or return why they were not (empty: somebody else changed them), as others may be all the same."""
        unit = scaling.unit
        serving = self._servings.cache.get(unit.namespace, unit.serving)
        if serving is None:
            return "it is gone"
        patch = replicas_patch(serving, scaling)
        info = ModelServing.kind_info
        try:
            await self._client.request(
                "PATCH", info.path(unit.namespace, unit.serving), patch, content_type=PatchType.JSON
            )  # fmt: skip
        except ApiError as error:
            if isinstance(error, ConflictError) or _is_test_failed(error):
                log.debug("replicas changed meanwhile", serving=unit.serving, role=unit.role)
                return ""
            self._tell(policy, "ScalingFailed", f"{unit.key} stays at {scaling.before}: {error.message}", "Warning")
            return error.message
        SCALINGS.labels("up" if scaling.after > scaling.before else "down").inc()
        message = f"{unit.key} goes from {scaling.before} to {scaling.after} replicas: {scaling.reason}"
        log.info("scaled", serving=unit.serving, role=unit.role, before=scaling.before, after=scaling.after)
        self._tell(policy, "Scaled", message)
        self._events.record(Event(_without_version(target_of(serving)), "Scaled", message), COMPONENT)
        return None

    async def _write(self, policy: AutoscalingPolicy, decision: Decision, now: datetime) -> None:
        info, meta = AutoscalingPolicy.kind_info, policy.metadata
        if decision.histories and (written := write_histories(decision.histories)) != meta.annotations.get(HISTORY):
            annotations: Document = {"metadata": {"annotations": {HISTORY: written}}}
            await self._client.patch_document(info, meta.name, annotations, meta.namespace, field_manager=COMPONENT)
        status = status_of(policy, decision, now.astimezone(UTC))
        if is_worth_writing(policy, status):
            await self._client.patch_document(
                info, meta.name, {"status": status}, meta.namespace, subresource="status", field_manager=COMPONENT
            )  # fmt: skip

    def _tell(self, policy: AutoscalingPolicy, reason: str, message: str, kind: str = "Normal") -> None:
        self._events.record(Event(_without_version(target_of(policy)), reason, message, kind), COMPONENT)


def _sleeps(serving: ModelServing) -> bool:
    """Whether the whole, or a role of it, has no replicas."""
    return serving.spec.replicas == 0 or any(role.replicas == 0 for role in serving.spec.template.roles)


def replicas_patch(serving: ModelServing, scaling: Scaling) -> Sequence[Document]:
    """The change as a JSON patch that holds only if nobody else has changed the replicas, or the order of roles."""
    if not scaling.unit.role:
        path, before = "/spec/replicas", scaling.before
        return [{"op": "test", "path": path, "value": before}, {"op": "replace", "path": path, "value": scaling.after}]
    at = next(number for number, role in enumerate(serving.spec.template.roles) if role.name == scaling.unit.role)
    role = f"/spec/template/roles/{at}"
    return [
        {"op": "test", "path": f"{role}/name", "value": scaling.unit.role},
        {"op": "test", "path": f"{role}/replicas", "value": scaling.before},
        {"op": "replace", "path": f"{role}/replicas", "value": scaling.after},
    ]


def _is_test_failed(error: ApiError) -> bool:
    """Whether a `test` of the patch did not hold; Kubernetes has no other mark for it."""
    return isinstance(error, InvalidError) and error.message.startswith("the server rejected our request")


def _without_version(target: Target) -> Target:
    return Target(kind=target.kind, name=target.name, namespace=target.namespace, uid=target.uid)
