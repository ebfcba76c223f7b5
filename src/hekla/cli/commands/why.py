"""Say why a pod, a gang or a Volcano job waits: what is missing, on which nodes, and what would let it start.
One that has its nodes and fails there is told of, too: how its containers ended, their last words, and what to do.

Of a queue: what it holds, who waits in it, and why. Of what makes pods (a ModelServing, ModelBooster, LeaderWorkerSet, JobFlow,
CronJob, Deployment, StatefulSet or batch Job): which of the gangs and pods below it wait, and why, and which of its containers ended:
how, how often, with which last words, and what to do. Of a ModelRoute or ModelServer: where requests go, which engines there are ready, and why none is.
Of a Gateway, HTTPRoute or InferencePool: what is attached, what was refused and why, and which engines are ready.
Of an AutoscalingPolicy: what it scales within which bounds, how many there are and are wanted, and why.

The scheduler answers from what it knows at this moment; asking changes nothing.

Examples:

  hekla why vcjob/train

  hekla why pod train-worker-0 -n research

  hekla why podgroup/train -o json

  hekla why queue/research

  hekla why modelserving/qwen

  hekla why modelroute/qwen

  hekla why gateway/models

  hekla why autoscalingpolicy/qwen
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hekla.api.meta import Document
    from hekla.cli.connection import Connection


def run(
    words: Annotated[
        list[str], typer.Argument(metavar="TYPE/NAME", show_default=False, autocompletion=completion.types_and_names)
    ],
    namespace: Namespace = "",
    output: Output = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Explain."""
    from hekla.cli import why_below, why_gateway, why_policy, why_route
    from hekla.cli.connection import run_connected
    from hekla.cli.output import print_document
    from hekla.cli.terminal import harmless
    from hekla.cli.why_text import queue_text, why_text

    name = explanation_name(words)
    found = run_connected(kubeconfig, lambda connection: _explained(connection, name, namespace))
    if output:
        print_document(found, output)
        return
    if "targets" in found:
        text = why_route.text(found)
    elif "parts" in found:
        text = why_gateway.text(found)
    elif "scaled" in found:
        text = why_policy.text(found)
    elif "items" in found:
        text = why_below.text(found)
    else:
        text = queue_text(found) if name.startswith("queue.") else why_text(found)
    typer.echo(harmless(text))


LACKS_PODS = frozenset({"NotEnoughTasks", "NotEnoughPodsOfTask"})
"""Codes of a gang of which pods are missing, as the plug-in `gang` says them."""


OF_ANOTHER = "ask for the scheduler"
"""How a scheduler says that it knows a gang that another is to place; elsewhere what the job says of itself goes before its words."""


def explanation_name(words: list[str]) -> str:
    """`pod.train-0`, from `pod/train-0` or `pod train-0`."""
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.why_asking import word_for

    kind, _, name = words[0].partition("/") if len(words) == 1 else (words[0], "", words[1])
    if len(words) > 2 or not name or "/" in name:
        raise CommandError(
            f'"{" ".join(words)}" is not TYPE/NAME; say for instance `hekla why vcjob/train`', EXIT_USAGE
        )
    word = word_for(kind)
    if not word:
        raise CommandError(
            f'a "{kind}" cannot be explained; ask about a pod, a podgroup, a vcjob or a queue, about a modelserving, modelbooster, '
            "leaderworkerset, jobflow, cronjob, deployment, statefulset or job.batch, or about a modelroute, modelserver, "
            "gateway, httproute, inferencepool or autoscalingpolicy",
            EXIT_USAGE,
        )
    return f"{word}.{name}"


async def _explained(connection: "Connection", name: str, namespace: str) -> dict[str, Any]:
    from hekla.api.explanation import SUBJECTS
    from hekla.cli.why_asking import explanation, owners
    from hekla.cli.why_below import why_below
    from hekla.cli.why_gateway import why_gateway, why_http_route, why_pool
    from hekla.cli.why_policy import why_policy
    from hekla.cli.why_route import why_route, why_server

    namespace, word = namespace or connection.default_namespace, name.partition(".")[0]
    if word == "vcjob":
        return await _explained_job(connection, name, namespace)
    if word == "pod":
        return await _explained_pod(connection, name, namespace)
    if word in SUBJECTS:
        return await explanation(connection, namespace, name)
    of_objects = {
        "modelroute": why_route, "modelserver": why_server, "autoscalingpolicy": why_policy,
        "gateway": why_gateway, "httproute": why_http_route, "inferencepool": why_pool,
    }  # fmt: skip
    if word in of_objects:
        return await of_objects[word](connection, name, namespace)
    return await why_below(connection, name, owners()[word], namespace)


async def _explained_pod(connection: "Connection", name: str, namespace: str) -> dict[str, Any]:
    """What the scheduler says of a pod, unless it is leaving and something keeps it."""
    from datetime import UTC, datetime

    from hekla.api.pods import Pod
    from hekla.cli.main import CommandError
    from hekla.cli.what_keeps import gone_by, what_keeps
    from hekla.cli.why_asking import explanation
    from hekla.kube.errors import ApiError

    pod_name = name.partition(".")[2]
    try:
        pod = await connection.client.get_document(Pod.kind_info, pod_name, namespace)
    except ApiError:  # who may not see it, or misspelt it, hears what the scheduler says
        return await explanation(connection, namespace, name)
    now = datetime.now(UTC)
    if keeps := await what_keeps(connection, pod, now):
        raise CommandError(f'pod "{pod_name}" in namespace "{namespace}" {gone_by(pod, now)}: {keeps}')
    return await _with_broken(connection, namespace, await explanation(connection, namespace, name), [pod])


async def _with_broken(
    connection: "Connection", namespace: str, found: dict[str, Any], pods: "Sequence[Document]"
) -> dict[str, Any]:
    """The explanation, and which containers of these pods ended and do not run: a pod that has its node may fail there."""
    from hekla.cli.why_broken import broken, with_last_words

    is_over = {"exitCode": 0, "reason": "Completed"}.items()  # done, beside another that runs
    failing = [one for one in broken(pods) if one.get("waits") or not is_over <= one["ended"].items()]
    return {**found, "broken": await with_last_words(connection, namespace, failing)} if failing else found


async def _pods_of(connection: "Connection", namespace: str, job: str) -> "Sequence[Document]":
    """The pods of a Volcano job; none for who may not see them, as the answer stands without."""
    from hekla.api.pods import Pod
    from hekla.kube.errors import ApiError
    from hekla.workloads.keys import JOB_NAME

    try:
        return (
            await connection.client.list_documents(Pod.kind_info, namespace, label_selector=f"{JOB_NAME}={job}")
        ).items
    except ApiError:
        return []


async def _explained_job(connection: "Connection", name: str, namespace: str) -> dict[str, Any]:
    """What the scheduler says of a Volcano job. It knows PodGroups only, so where it has none the job itself is asked."""
    from hekla.api.volcano import Job
    from hekla.cli.main import CommandError
    from hekla.cli.names import hint
    from hekla.cli.why_asking import explanation
    from hekla.cli.why_below import refusals
    from hekla.kube.errors import ApiError, NotFoundError

    job_name = name.partition(".")[2]
    try:
        found = await explanation(connection, namespace, name)
        if (found.get("refusal") or {}).get("code") in LACKS_PODS:
            return {**found, "refusals": await refusals(connection, job_name, namespace)}
        return await _with_broken(connection, namespace, found, await _pods_of(connection, namespace, job_name))
    except NotFoundError as unknown:
        try:
            job = await connection.client.get_document(Job.kind_info, job_name, namespace)
        except NotFoundError:
            raise CommandError(
                f'vcjob "{job_name}" does not exist in namespace "{namespace}"'
                + await hint(connection, Job.kind_info.path(namespace), job_name)
            ) from None
        except ApiError:
            raise unknown from None  # who may not see jobs hears what the scheduler said
        if OF_ANOTHER in unknown.message:
            raise
        raise CommandError(without_group(job)) from None


def _since(state: dict[str, Any]) -> str:
    return f" since {state['lastTransitionTime']}" if state.get("lastTransitionTime") else ""


def without_group(job: dict[str, Any]) -> str:
    """What to say of a job that has no PodGroup: it is over, or the controllers have not come to it."""
    from hekla.workloads.job_lifecycle import ALIVE, FINISHED

    state = (job.get("status") or {}).get("state") or {}
    phase, meta = state.get("phase", ""), job["metadata"]
    named = f'vcjob "{meta["name"]}" in namespace "{meta["namespace"]}"'
    if phase in FINISHED:
        logs = (
            f"; what its pods wrote: hekla logs vcjob/{meta['name']} -n {meta['namespace']}"
            if phase == "Failed"
            else ""
        )
        return f"{named} is over ({phase}{_since(state)}), so it waits for nothing{logs}"
    if phase and phase not in ALIVE:  # its group went with its pods
        until = "; it waits until somebody resumes it" if phase == "Aborted" else ""
        return f"{named} is {phase}{_since(state)}, so it has no PodGroup and asks for no node{until}"
    return (
        f"{named} has no PodGroup yet (its phase is {phase or 'not written yet'}); ask again in a moment, and if none comes, "
        f"`hekla describe vcjob/{meta['name']}` shows its events"
    )
