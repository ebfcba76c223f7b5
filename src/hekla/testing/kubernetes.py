"""A real Kubernetes control plane for tests: etcd, kube-apiserver and kube-controller-manager as processes on free ports.

    with ControlPlane(tmp_path) as kubernetes:
        Kubectl(kubernetes.kubeconfig, home=tmp_path)("get", "nodes")

The programs are looked for in the directories that `HEKLA_KUBE_BIN` names, as PATH does, and then on the PATH; `missing`
says what is not there. No program is brought along, and there is no kubelet: `kubelets.py` plays it.
"""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from hekla.api.meta import Document
from hekla.apiserver.auth import pki
from hekla.kube.credentials import ClientCertificate
from hekla.kube.kubeconfig import write_kubeconfig

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
START_S = 120.0
CLIENT_NAMES = ("kube-controller-manager", "kube-scheduler")


def program(name: str) -> str | None:
    """Where a program of Kubernetes is, or None."""
    places = os.pathsep.join((os.environ.get("HEKLA_KUBE_BIN", ""), os.environ.get("PATH", "")))
    return shutil.which(name, path=places)


def missing(*names: str) -> str:
    """Which of these programs (of a control plane's, by default) are not here, as a reason to skip; empty if none."""
    lacking = [name for name in names or PROGRAMS if program(name) is None]
    return f"not in HEKLA_KUBE_BIN nor on the PATH: {', '.join(lacking)}" if lacking else ""


def host_address() -> str:
    """An address of this machine that is not of the loopback: Kubernetes takes no other for an endpoint."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it only chooses a route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


class ControlPlane:
    """One cluster without nodes; each of its processes may be killed and started again."""

    def __init__(
        self,
        directory: Path,
        *,
        apiserver_args: Sequence[str] = (),
        controller_args: Sequence[str] = (),
        addresses: Sequence[str] = ("127.0.0.1",),
    ) -> None:
        """Everything it writes goes into `directory`; arguments that come later win over ours."""
        self.directory = directory
        self._apiserver_args, self._controller_args = apiserver_args, controller_args
        self._addresses = addresses
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.port, self._etcd, self._peers, self._controllers = free_ports(4)

    def __enter__(self) -> "ControlPlane":
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / "kubernetes-admin.conf"

    def kubeconfig_of(self, name: str) -> Path:
        """That of a component: `kube-scheduler`, `kube-controller-manager`."""
        return self.directory / f"{name}.conf"

    def pid(self, name: str) -> int:
        """The process of a component that runs."""
        return self._running[name].pid

    def log(self, name: str) -> str:
        """What a component has said so far."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def start(self) -> None:
        """Start everything and wait until the API server is ready."""
        self._write_identities()
        self.start_etcd()
        self.start_apiserver()
        self.start_controllers()

    def start_etcd(self) -> None:
        """Without fsync: what a machine that dies would lose is a test's."""
        here, peers = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peers}"
        self._run("etcd", (
            f"--data-dir={self.directory / 'etcd'}", "--unsafe-no-fsync", f"--listen-client-urls={here}",
            f"--advertise-client-urls={here}", f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
        ))  # fmt: skip

    def start_apiserver(self) -> None:
        """Start it, at the port that it had, and wait until it is ready. Services are reached by their endpoints, as nothing serves cluster addresses here."""
        keys = self._pki
        self._run("kube-apiserver", (
            f"--etcd-servers=http://127.0.0.1:{self._etcd}", "--bind-address=127.0.0.1", f"--secure-port={self.port}",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={keys.server.certificate}", f"--tls-private-key-file={keys.server.key}",
            f"--client-ca-file={keys.authority.certificate}",
            f"--service-account-key-file={self._token_checker}", f"--service-account-signing-key-file={keys.token_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--service-cluster-ip-range=10.0.0.0/16", "--allow-privileged=true", "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={keys.front_proxy_authority.certificate}",
            f"--requestheader-allowed-names={pki.FRONT_PROXY}", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={keys.front_proxy.certificate}", f"--proxy-client-key-file={keys.front_proxy.key}",
            f"--kubelet-client-certificate={keys.admin.certificate}", f"--kubelet-client-key={keys.admin.key}",
            f"--kubelet-certificate-authority={keys.authority.certificate}",
            *self._apiserver_args,
        ))  # fmt: skip
        self._wait_until_ready()

    def start_controllers(self) -> None:
        """The controllers of Kubernetes: garbage collection, namespaces, ReplicaSets, Jobs and the others."""
        keys, conf = self._pki, self.kubeconfig_of("kube-controller-manager")
        self._run("kube-controller-manager", (
            f"--kubeconfig={conf}", f"--authentication-kubeconfig={conf}", f"--authorization-kubeconfig={conf}",
            "--bind-address=127.0.0.1", f"--secure-port={self._controllers}", "--leader-elect=false",
            f"--service-account-private-key-file={keys.token_key}", f"--root-ca-file={keys.authority.certificate}",
            "--use-service-account-credentials",
            f"--cluster-signing-cert-file={keys.authority.certificate}",
            f"--cluster-signing-key-file={keys.authority.key}",
            *self._controller_args,
        ))  # fmt: skip

    def start_scheduler(self, *arguments: str) -> None:
        """Kubernetes' own scheduler, for what is held against it."""
        conf = self.kubeconfig_of("kube-scheduler")
        self._run("kube-scheduler", (
            f"--kubeconfig={conf}", f"--authentication-kubeconfig={conf}", f"--authorization-kubeconfig={conf}",
            "--bind-address=127.0.0.1", f"--secure-port={free_ports(1)[0]}", "--leader-elect=false", *arguments,
        ))  # fmt: skip

    def stop(self, name: str, *, is_killed: bool = False) -> None:
        """End a component, by SIGKILL if a crash is wanted."""
        process = self._running.pop(name)
        (process.kill if is_killed else process.terminate)()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def compact(self) -> None:
        """Have etcd forget every revision but the last, so that who asks for an older one is told 410."""
        revision = self._ask_etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        self._ask_etcd("/v3/kv/compaction", {"revision": revision, "physical": True})

    def _ask_etcd(self, path: str, question: Document) -> Document:
        request = urllib.request.Request(f"http://127.0.0.1:{self._etcd}{path}", json.dumps(question).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def _end(self) -> None:
        for name in list(reversed(self._running)):
            self.stop(name)

    def _run(self, name: str, arguments: Sequence[str]) -> None:
        path = program(name)
        assert path is not None, missing(name)
        with (self.directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen([path, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _write_identities(self) -> None:
        self._pki = pki.ensure_pki(self.directory / "pki", pki.utc_now(), self._addresses)
        key = load_pem_private_key(self._pki.token_key.read_bytes(), password=None)
        self._token_checker.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        self._write_kubeconfig("kubernetes-admin", self._pki.admin)
        for name in CLIENT_NAMES:
            pair = pki.Pair(self.directory / "pki" / f"{name}.crt", self.directory / "pki" / f"{name}.key")
            pki.issue(self._pki.authority, pair, f"system:{name}", (), pki.utc_now())
            self._write_kubeconfig(name, pair)

    @property
    def _token_checker(self) -> Path:
        return self.directory / "pki" / "tokens.pub"

    def _write_kubeconfig(self, name: str, pair: pki.Pair) -> None:
        write_kubeconfig(
            self.directory / f"{name}.conf",
            server=self.url,
            ca_pem=self._pki.authority.certificate.read_bytes(),
            client_certificate=ClientCertificate(pair.certificate.read_bytes(), pair.key.read_bytes()),
            name="kubernetes",
            user=name,
        )

    def _wait_until_ready(self) -> None:
        context = ssl.create_default_context(cafile=str(self._pki.authority.certificate))
        context.load_cert_chain(self._pki.admin.certificate, self._pki.admin.key)
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            assert self._running["kube-apiserver"].poll() is None, self.log("kube-apiserver")[-2000:]
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(f"{self.url}/readyz", timeout=10, context=context) as answer,
            ):
                if answer.status == 200:
                    return
            time.sleep(0.2)
        raise AssertionError(f"the API server was not ready in {START_S:.0f} s: {self.log('kube-apiserver')[-2000:]}")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
