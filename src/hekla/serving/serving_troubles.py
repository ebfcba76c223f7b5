"""How containers ended, in words: for a ModelServing's conditions and events (`serving_status.py`, `model_serving.py`)."""

from collections.abc import Iterator

from hekla.api.pods import ContainerStatus, Pod
from hekla.serving.serving_view import is_leaving, is_ready

POD_FAILED = "PodFailed"
"""Reason of the events about pods that are made anew because they ended; counted, so that `hekla why` can say how often."""


def troubles(pod: Pod) -> Iterator[tuple[ContainerStatus, str]]:
    """The containers of a pod that do not serve and have ended, each with how."""
    if is_ready(pod) or is_leaving(pod):
        return
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if not one.ready and (how := how_it_ended(one)):
            yield one, how


def how_it_ended(one: ContainerStatus) -> str:
    """Told by how it ended rather than by what it does about it, which changes with every attempt."""
    for state in (one.state, one.last_state):
        ended = state.terminated if state is not None else None
        if ended is not None:
            return f"ended with exit code {ended.exit_code} ({ended.reason or ('Error' if ended.exit_code else 'Completed')})"
    return ""
