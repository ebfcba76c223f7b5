"""`hekla run` as processes against some cluster, each with exactly the rights that the manifests grant it.

cluster = Cluster(platform.kubeconfig, home=tmp_path)
cluster.install()
with cluster.running("scheduler") as scheduler:
    scheduler.wait_for("event=leads")
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from hekla.testing.kubectl import Kubectl, RunningCommand

ROOT = Path(__file__).resolve().parents[3]
REFUSED = re.compile(r"cannot (get|list|watch|create|patch|update|delete|deletecollection) resource[^\n]*")

AS_VERSION = """
import sys
import hekla
hekla.__version__ = sys.argv.pop(1)
from hekla.cli.main import main
sys.exit(main())
"""

ENDPOINTS = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hekla-webhooks-here, namespace: hekla-system, labels: {kubernetes.io/service-name: hekla-webhooks}}
addressType: IPv4
endpoints: [{addresses: [ADDRESS], conditions: {ready: true}}]
ports: [{name: webhooks, port: PORT, protocol: TCP}]
"""

DEVICES = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus-of-one-node}
spec:
  nodeName: NODE
  driver: gpu.example.com
  pool: {name: NODE, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: a100}}}
  - {name: gpu-1, attributes: {model: {string: h100}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.example.com
        selectors: [{cel: {expression: 'device.attributes["gpu.example.com"].model == "h100"'}}]
---
apiVersion: v1
kind: Pod
metadata: {name: takes-gpu}
spec:
  schedulerName: volcano
  containers: [{name: c, image: i, command: [sleep, "1000"], resources: {claims: [{name: g}]}}]
  resourceClaims: [{name: g, resourceClaimName: gpu}]
"""

GANG = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: NAME}
spec:
  minAvailable: 2
  schedulerName: volcano
  plugins: {svc: [], ssh: [], env: []}
  tasks:
  - name: w
    replicas: 2
    template:
      spec:
        restartPolicy: Never
        terminationGracePeriodSeconds: 0
        containers: [{name: c, image: any, command: [sh, -c, 'sleep SECONDS'], resources: {requests: {cpu: "CPU"}}}]
"""


def gang(name: str, *, cpu: str = "1", seconds: float = 0.2, **spec: object) -> str:
    """A Job of two pods that start together and sleep; `spec` goes before its own."""
    text = GANG.replace("NAME", name).replace("CPU", cpu).replace("SECONDS", str(seconds))
    document = yaml.safe_load(text)
    document["spec"].update(spec)
    return json.dumps(document)


class Component(RunningCommand):
    """One `hekla run`, with the token of its service account."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.process = process

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    @property
    def refusals(self) -> list[str]:
        """Every right that it lacked."""
        return sorted({found.group() for found in REFUSED.finditer(self.printed)})


class Cluster:
    """The server, with Hekla's manifests applied to it."""

    def __init__(self, kubeconfig: Path, home: Path, address: str = "127.0.0.1") -> None:
        """The administrator's kubeconfig, a folder for what is written meanwhile, and where the API server reaches us."""
        self.kubeconfig, self.home, self.address = kubeconfig, home, address
        self.kubectl = Kubectl(kubeconfig, home=home)
        self.ours = self.kubectl.within("hekla-system")

    def install(self) -> None:
        """Apply deploy/ as users do, without its deployments' pods: their image is not here."""
        self.kubectl.within("")("apply", "-k", str(ROOT / "deploy"))
        self.ours("scale", "deployment", "--all", "--replicas=0")

    def kubeconfig_of(self, account: str) -> Path:
        """A kubeconfig that knows nothing but a service account's token."""
        token = self.ours("create", "token", account, "--duration=1h").out.strip()
        document = yaml.safe_load(self.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        path = self.home / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    @contextmanager
    def running(self, component: str, *flags: str, account: str = "", version: str = "") -> Iterator[Component]:
        """Run a component for the length of a block; as another version of Hekla, if one is named."""
        kubeconfig = self.kubeconfig_of(account or f"hekla-{component}")
        program = ["-c", AS_VERSION, version] if version else ["-m", "hekla.cli.main"]
        command = [sys.executable, *program, "run", component, "--kubeconfig", str(kubeconfig)]
        command += ["--metrics-address=127.0.0.1:0", "--log-level=debug"]
        command += [f"--webhook-address={self.address}:0", f"--answers-address={self.address}:0", *flags]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        found = Component(process)
        try:
            found.wait_for("health and metrics at", timeout_s=60)
            yield found
        finally:
            if process.poll() is None:
                process.kill()
            found.end()

    def lead_to(self, webhooks: Component) -> None:
        """Wait until a webhook process answers, and lead the Service of the webhooks to it."""
        port = webhooks.wait_for(r'event="webhooks answer" address=https://[\d.]+:(\d+)', timeout_s=60)
        self.ours("apply", "-f", "-", stdin=ENDPOINTS.replace("PORT", port).replace("ADDRESS", self.address))

    def wait(self, what: str, until: str, *, timeout_s: int = 90) -> None:
        """Wait as kubectl does."""
        self.kubectl("wait", *what.split(), f"--for={until}", f"--timeout={timeout_s}s")
