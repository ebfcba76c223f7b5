"""Suspend a job, whose pods end while it waits as Aborted, in LSF's manner: -n is the name and -N the namespace.

Examples:

  vsuspend -n train

  vsuspend -n train -N research
"""

from hekla.cli.peer_options import LsfJobName, LsfNamespace, Master, PeerKubeconfig


def run(
    namespace: LsfNamespace = "default", name: LsfJobName = "", master: Master = "", kubeconfig: PeerKubeconfig = ""
) -> None:
    """Suspend a job."""
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.jobs import suspend_job
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "job", "--name")
    run_connected(kubeconfig, lambda link: suspend_job(link, name, namespace), master)
