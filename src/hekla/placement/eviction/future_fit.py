"""Would a task fit a node when all who are leaving have left? Asked by both who make room: `evict_for_task.py`, `evict_for_gang.py`."""

from hekla.placement.cluster import Cluster
from hekla.placement.model import Task
from hekla.placement.node_selection.placer import Placer


def will_fit(cluster: Cluster, placer: Placer, task: Task, row: int) -> bool:
    """Whether it would, by amounts, parts of GPUs, and the pods that stay there; a queue's share is not looked at."""
    nodes, shape = cluster.nodes, task.shape
    at = (shape.resources, row)
    future = nodes.idle[at] + nodes.reserved[at] + nodes.releasing[at] - nodes.pipelined[at]
    if (future < shape.amounts).any():
        return False
    return is_plain(task) or (bool(placer.lets_in(task)[row]) and will_have_devices(cluster, task, row))


def is_plain(task: Task) -> bool:
    """Whether nothing but amounts and the node's facts say where it may run."""
    return task.shape.constraints.is_local and not task.carriers and not task.shape.gpu_milli


def will_have_devices(cluster: Cluster, task: Task, row: int) -> bool:
    """Whether the parts of GPUs that a task asks for will be free, where those of leaving pods are."""
    milli, devices = task.shape.gpu_milli, cluster.nodes.devices
    if not milli:
        return True
    coming = [one for one in cluster.leaving.values() if one.row == row and one.devices]
    for one in coming:
        devices.give(row, one.devices, one.shape.gpu_milli)
    fits = bool(devices.fits(milli, cluster.nodes.rows)[row])
    for one in coming:
        devices.take(row, one.devices, one.shape.gpu_milli)
    return fits
