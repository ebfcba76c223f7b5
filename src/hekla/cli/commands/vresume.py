"""Resume a job that was suspended, in LSF's manner: -n is the name and -N the namespace.

Examples:

  vresume -n train

  vresume -n train -N research
"""

from hekla.cli.peer_options import LsfJobName, LsfNamespace, Master, PeerKubeconfig


def run(
    namespace: LsfNamespace = "default", name: LsfJobName = "", master: Master = "", kubeconfig: PeerKubeconfig = ""
) -> None:
    """Resume a job."""
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.jobs import resume_job
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "job", "--name")
    run_connected(kubeconfig, lambda link: resume_job(link, name, namespace), master)
