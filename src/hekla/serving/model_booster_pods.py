"""What a ModelBooster's pods are made of: the engine's command, the downloader before it, the runtime beside it.

    model-downloader   fetches the model into the cache volume, before anything else
    runtime            metrics in the words of all engines, LoRA adapters, downloads
    engine             vLLM, with the worker's `config` as its flags

A flag is `--key value`, in order of keys: `true` and "" are the flag alone, `false` is `--no-key`, what has parts is JSON
(`speculative-config`, `kv-transfer-config`), and a list of names or adapters a word for each. Kthena writes `--key true`, which vLLM refuses, and joins a shell's words
without quotes.
"""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hekla.api.kthena import ModelBooster
from hekla.api.kthena.booster import BackendType, ModelWorker, WorkerType
from hekla.api.meta import Document
from hekla.lib import quantity
from hekla.serving.engine_arguments import ArgumentError, engine_port, runtime_port

DOWNLOADER_IMAGE, RUNTIME_IMAGE = "kthena/downloader:latest", "kthena/runtime:latest"
DOWNLOADER_KEY, RUNTIME_KEY = "model_serving_downloader_image", "model_serving_runtime_image"
DOWNLOADER_ENVIRONMENT = ("ENDPOINT", "HF_ENDPOINT", "MS_TOKEN", "MS_REVISION")
RAY = "examples/online_serving/multi-node-serving.sh"
"""vLLM's own script, in its image."""

INSTALLS = {
    "MooncakeConnector": "pip install mooncake-transfer-engine",
    "NixlConnector": "PIP_DISABLE_PIP_VERSION_CHECK=1 pip install -U --no-cache-dir nixl",
}
"""What vLLM's image lacks for a connector."""

DEVICES = ("nvidia.com/gpu", "huawei.com/ascend-1980")
DRAIN_S = 300

DRAIN = """\
while true; do
  LEFT=$(curl -s --max-time 2 "http://${{POD_IP:-localhost}}:{port}/metrics" |
    awk '/^vllm:num_requests_(running|waiting)[{{ ]/ {{ left += $NF; seen = 1 }} END {{ if (seen) print left }}')
  if [ -z "$LEFT" ] || [ "$LEFT" = 0 ]; then
    exit 0
  fi
  sleep 5
done
"""
"""An engine that is told to end ends when nothing runs or waits, or when it does not answer. Its ranks are summed, and waiting by
reason, which newer engines tell beside waiting, is not counted: in Kthena's script either is text that is never `0.0`."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images of what runs around an engine."""

    downloader: str = DOWNLOADER_IMAGE
    runtime: str = RUNTIME_IMAGE


def images_of(environment: Mapping[str, str]) -> Images:
    """As the environment says, by the keys of the ConfigMap that Kthena's controllers read; empty and absent: the usual ones."""
    usual = Images()
    return Images(
        downloader=environment.get(DOWNLOADER_KEY, "").strip() or usual.downloader,
        runtime=environment.get(RUNTIME_KEY, "").strip() or usual.runtime,
    )


@dataclass(frozen=True)
class BoosterPods:
    """The parts of one booster's pods."""

    booster: ModelBooster
    child_labels: dict[str, str]
    images: Images = field(default_factory=Images)

    @property
    def port(self) -> int:
        """Where engines listen; raises ArgumentError."""
        return engine_port(self.booster.spec.backend.workers)

    def worker(self, kind: WorkerType) -> ModelWorker:
        """The worker of a kind; raises ArgumentError."""
        backend = self.booster.spec.backend
        found = next((one for one in backend.workers if one.type == kind), None)
        if found is None:
            raise ArgumentError(f"{kind} worker not found in backend {backend.name}")
        return found

    def role(self, name: str, kind: WorkerType) -> Document:
        """A role of the ModelServing."""
        worker = self.worker(kind)
        workers = max(0, worker.pods - 1) if kind is WorkerType.SERVER else 0
        role: Document = {
            "name": name,
            "replicas": worker.replicas,
            "entryTemplate": {"metadata": {"labels": dict(self.child_labels)}, "spec": self._entry(worker, kind)},
            "workerReplicas": workers,
        }
        if workers:
            role["workerTemplate"] = {"metadata": {"labels": dict(self.child_labels)}, "spec": self._ray_worker(worker)}
        return role

    def _entry(self, worker: ModelWorker, kind: WorkerType) -> Document:
        spec = self._shared(worker)
        spec["containers"] = [self._runtime(kind), self._engine(worker, kind)]
        if kind is WorkerType.SERVER:
            spec["terminationGracePeriodSeconds"] = DRAIN_S
        return spec

    def _ray_worker(self, worker: ModelWorker) -> Document:
        backend = self.booster.spec.backend
        spec = self._shared(worker)
        join = f"chmod u+x {RAY} && {RAY} worker --ray_address=$(ENTRY_ADDRESS)"
        container = {
            "name": f"{backend.name.lower()}-{backend.type.lower()}-worker",
            "image": worker.image,
            "command": ["bash", "-c", join],
            "env": list(backend.env),
            "resources": worker.resources,
            "volumeMounts": self._mounts(),
        }
        spec["containers"] = [container]
        return spec

    def _shared(self, worker: ModelWorker) -> Document:
        backend = self.booster.spec.backend
        told = {
            "runtimeClassName": backend.runtime_class_name, "affinity": worker.affinity, "tolerations": worker.tolerations
        }  # fmt: skip
        kept = {key: value for key, value in told.items() if value}
        return {**kept, "initContainers": [self._downloader()], "volumes": self._volumes()}

    def _downloader(self) -> Document:
        backend = self.booster.spec.backend
        env = [one for one in backend.env if one.get("name") in DOWNLOADER_ENVIRONMENT and one.get("value")]
        return {
            "name": f"{self.booster.metadata.name}-model-downloader",
            "image": self.images.downloader,
            "args": ["--source", backend.model_uri, "--output-dir", self.model_path],
            "env": env,
            "envFrom": list(backend.env_from),
            "volumeMounts": self._mounts()[:1],
        }

    def _runtime(self, kind: WorkerType) -> Document:
        backend = self.booster.spec.backend
        port = runtime_port(backend)
        arguments = {
            "--port": str(port),
            "--engine": backend.type.lower(),
            "--engine-base-url": self._told("RUNTIME_URL", f"http://localhost:{self.port}"),
            "--engine-metrics-path": self._told("RUNTIME_METRICS_PATH", "/metrics"),
            "--pod": "$(POD_NAME).$(NAMESPACE)",
            "--model": self.booster.metadata.name,
        }
        return {
            "name": "runtime",
            "image": self.images.runtime,
            "args": [word for pair in arguments.items() for word in pair],
            "ports": [{"containerPort": port}],
            "env": self._environment(kind),
            "envFrom": list(backend.env_from),
            "readinessProbe": {
                "httpGet": {"path": "/health", "port": port}, "initialDelaySeconds": 5, "periodSeconds": 10
            },
        }  # fmt: skip

    def _engine(self, worker: ModelWorker, kind: WorkerType) -> Document:
        is_server = kind is WorkerType.SERVER
        health = {"path": "/health", "port": self.port}
        container: Document = {
            "name": "engine" if is_server else "vllm",
            "image": worker.image,
            "command": self.command(worker),
            "ports": [{"containerPort": self.port}],
            "env": self._environment(kind),
            "resources": worker.resources,
            "volumeMounts": self._mounts(),
            # ready as soon as it answers: Kthena's first look at a server comes after three minutes
            "readinessProbe": {"httpGet": health, "initialDelaySeconds": 5, "periodSeconds": 5, "failureThreshold": 3},
        }
        if is_server:
            drain = ["/bin/sh", "-c", DRAIN.format(port=self.port)]
            container["lifecycle"] = {"preStop": {"exec": {"command": drain}}}
        else:
            container["livenessProbe"] = {
                "httpGet": health, "initialDelaySeconds": 180, "periodSeconds": 5, "failureThreshold": 3
            }  # fmt: skip
        return container

    def command(self, worker: ModelWorker) -> list[str]:
        """How the engine is started."""
        # without a name of its own an engine calls the model by its path, and refuses the name that the router gives
        config = {"served-model-name": served_name(self.booster), **_with_dashes(worker.config)}
        start = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", self.model_path]
        words = [*start, *flags(config)]
        before: list[str] = []
        connector = _connector(worker.config)
        if (
            connector in INSTALLS
            and self._has_gpu()
            and self._told("KTHENA_SKIP_ENGINE_DEPENDENCY_INSTALL", "") not in TRUE
        ):
            before.append(INSTALLS[connector])
        if worker.type == WorkerType.SERVER and worker.pods > 1:
            words += ["--distributed_executor_backend", "ray"]
            size = f"--ray_cluster_size={worker.pods} --num-gpus={_devices(worker)}"
            before.append(f"chmod u+x {RAY} && {RAY} leader {size}")
        return ["bash", "-c", " && ".join([*before, shlex.join(words)])] if before else words

    @property
    def model_path(self) -> str:
        """Where the engine finds the model: below the cache, apart from other models; of a claim, the place it names."""
        backend = self.booster.spec.backend
        if backend.model_uri.startswith("pvc://"):
            return cache_path(backend.model_uri)
        return f"{cache_path(backend.cache_uri)}/{hashlib.md5(backend.model_uri.encode(), usedforsecurity=False).hexdigest()}"

    def _volumes(self) -> list[Document]:
        backend = self.booster.spec.backend
        weights: Document = {"name": f"{backend.name}-weights"}
        scheme, _, rest = backend.cache_uri.partition("://")
        if scheme == "pvc":
            weights["persistentVolumeClaim"] = {"claimName": rest.strip("/").partition("/")[0]}
        elif scheme == "hostpath":
            weights["hostPath"] = {"path": cache_path(backend.cache_uri), "type": "DirectoryOrCreate"}
        else:
            weights["emptyDir"] = {}
        if backend.type == BackendType.VLLM_DISAGGREGATED:
            return [weights]
        return [weights, {"name": "dshm", "emptyDir": {"medium": "Memory"}}]

    def _mounts(self) -> list[Document]:
        backend = self.booster.spec.backend
        claim = cache_path(backend.cache_uri)
        if backend.cache_uri.startswith("pvc://"):
            claim = f"/{claim.strip('/').partition('/')[0]}"
        mounts = [{"name": f"{backend.name}-weights", "mountPath": claim or "/model-cache"}]
        if backend.type == BackendType.VLLM_DISAGGREGATED:
            return mounts
        return [*mounts, {"name": "dshm", "mountPath": "/dev/shm"}]

    def _environment(self, kind: WorkerType) -> list[Document]:
        own = [*self.booster.spec.backend.env, *STANDARD_ENVIRONMENT]
        if kind is WorkerType.PREFILL:
            own += [{"name": "HF_HUB_OFFLINE", "value": "1"}, _field("HCCL_IF_IP", "status.podIP")]
        if kind is WorkerType.DECODE:
            own.append({"name": "HF_HUB_OFFLINE", "value": "1"})
            own += [
                {"name": f"{name}_SOCKET_IFNAME", "value": "eth0"} for name in ("GLOO", "TP", "HCCL")
            ]  # fmt: skip
        return own

    def _told(self, name: str, default: str) -> str:
        found = next(
            (str(one.get("value") or "") for one in self.booster.spec.backend.env if one.get("name") == name), ""
        )
        return found or default

    def _has_gpu(self) -> bool:
        return any(_amount(one, "nvidia.com/gpu") for one in self.booster.spec.backend.workers)


SEVERAL_WORDS = ("api-key", "lora-modules", "served-model-name")
"""Flags behind which vLLM takes as many words as stand there; a list in JSON is none of them."""
TRUE = ("1", "t", "T", "true", "TRUE", "True")
"""How Go spells it."""


def _field(name: str, path: str) -> Document:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _optional(name: str, source: str, holder: str) -> Document:
    return {"name": name, "valueFrom": {source: {"name": holder, "key": name, "optional": True}}}


STANDARD_ENVIRONMENT: Sequence[Document] = (
    _field("POD_NAME", "metadata.name"),
    _field("NAMESPACE", "metadata.namespace"),
    _field("POD_IP", "status.podIP"),
    {"name": "VLLM_USE_V1", "value": "1"},
    _optional("REDIS_HOST", "configMapKeyRef", "redis-config"),
    _optional("REDIS_PORT", "configMapKeyRef", "redis-config"),
    _optional("REDIS_PASSWORD", "secretKeyRef", "redis-secret"),
)


def served_name(booster: ModelBooster) -> str:
    """What engines call the model: what they are told, else the booster's name."""
    for worker in booster.spec.backend.workers:
        said = (worker.config or {}).get("served-model-name")
        said = said[0] if isinstance(said, list) and said else said
        if worker.type in (WorkerType.SERVER, WorkerType.DECODE) and isinstance(said, str) and said:
            return said
    return booster.metadata.name


def _with_dashes(config: Document | None) -> Document:
    return {key.replace("_", "-"): value for key, value in (config or {}).items()}


def flags(config: Document | None) -> list[str]:
    """A worker's configuration as words of a command line."""
    words: list[str] = []
    for key in sorted(config or {}):
        name, value = key.replace("_", "-"), (config or {})[key]
        if name in SEVERAL_WORDS and isinstance(value, list):
            words += [f"--{name}", *(word for one in value for word in _value(one))] if value else []
        else:
            words += [f"--no-{name}"] if value is False else [f"--{name}", *_value(value)]
    return words


def _value(value: Any) -> list[str]:
    if value is True or value in ("", None):
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, float) and value.is_integer():
        return [str(int(value))]
    return [str(value) if isinstance(value, int | float) else msgspec.json.encode(value).decode()]


def cache_path(uri: str) -> str:
    """Where a cache is seen in containers: `pvc://a/b` is /a/b; nothing said is with the pod."""
    _, separator, rest = uri.partition("://")
    return f"/{rest.strip('/')}" if separator and rest.strip("/") else "/model-cache"


def _connector(config: Document | None) -> str:
    said = (config or {}).get("kv-transfer-config")
    try:
        read = msgspec.json.decode(said) if isinstance(said, str) else said
    except msgspec.DecodeError:
        return ""
    return str(read.get("kv_connector", "")) if isinstance(read, dict) else ""


def _amount(worker: ModelWorker, device: str) -> int:
    return quantity.to_int(str((worker.resources.get("limits") or {}).get(device, 0)))


def _devices(worker: ModelWorker) -> int:
    return sum(_amount(worker, device) for device in DEVICES)
