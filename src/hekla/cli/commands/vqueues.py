"""List queues, or show one, in LSF's manner.

Examples:

  vqueues

  vqueues -n research
"""

import typer

from hekla.cli.peer_options import Master, PeerKubeconfig, QueueName


def run(name: QueueName = "", master: Master = "", kubeconfig: PeerKubeconfig = "") -> None:
    """List queues, or show one."""
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.queues import VQUEUES_COLUMNS, peer_queue_list

    typer.echo(run_connected(kubeconfig, lambda link: peer_queue_list(link, name, VQUEUES_COLUMNS), master))
