"""What is refused in a ModelBooster, in the words of Kthena's webhook: workers that do not fit, images, ports, addresses.

`engine_arguments.py` reads what workers say to their engines.
"""

import posixpath
from collections.abc import Iterator

import msgspec

from hekla.api.kthena import ModelBooster
from hekla.api.kthena.booster import BackendType, ModelBackend, WorkerType
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.fielderrors import FieldError, invalid
from hekla.serving.admission_words import denial
from hekla.serving.engine_arguments import ArgumentError, engine_port, kv_connector, runtime_port
from hekla.serving.model_booster_children import (
    INTER_TOKEN,
    MAX_REPLICAS,
    MIN_REPLICAS,
    TTFT,
    idle_annotations,
    wrong_annotations,
)

MOST_REPLICAS = 1_000_000
_WORKERS = "spec.backend.workers"
_NEEDS_PVC = (
    "when modelURI uses pvc://, cacheURI must also use pvc://. The downloader only has access to the volume mounted via "
    "cacheURI. Set cacheURI to the PVC that holds the model (e.g. pvc://<claimName>) and set modelURI to the path within "
    "that PVC (e.g. pvc:///<claimName>/<path-to-model>)"
)
_ONE_CLAIM = (
    "pvc:// cacheURI must contain a single PVC claim name with no path separator (e.g. pvc://<claimName>); "
    "claim names cannot contain '/'"
)
_UNREACHABLE = (
    'PVC source path "{source}" is not reachable via cacheURI mount "{mount}". The downloader only has access to PVCs mounted '
    "via cacheURI. If the source model and the cache are on the same PVC, set cacheURI to the PVC name and include that name "
    "as the first path segment of modelURI. Example: cacheURI: pvc://<claimName>, modelURI: pvc:///<claimName>/<path-to-model>"
)


_TAKEN = (
    "the side-car in the same pod listens on {port}: take another port, or another for it by the variable RUNTIME_PORT in "
    "spec.backend.env"
)
_IDLE = (
    f"annotation {{name}} changes nothing: {MIN_REPLICAS}, {TTFT} and {INTER_TOKEN} are for what {MAX_REPLICAS} has scaled, "
    "and there are no others"
)
_OLD_BACKEND = "spec.backend.minReplicas and maxReplicas are of Kthena 0.3 and were converted: write replicas: {replicas}{annotations}"
_OLD_ANNOTATIONS = ", and annotations serving.hekla.dev/min-replicas: {least} and serving.hekla.dev/max-replicas: {most} to have them scaled"


def convert_model_booster(request: AdmissionRequest, reader: Reader) -> None:
    """Write the bounds of a ModelBooster of Kthena 0.3 as today: as many groups as the fewest, scaled by a policy up to the most."""
    booster = request.object or {}
    backend = (booster.get("spec") or {}).get("backend")
    if not isinstance(backend, dict):
        return
    given = [backend.pop(name, None) for name in ("minReplicas", "maxReplicas")]
    least, most = (one if type(one) is int else None for one in given)
    if least is None and most is None:
        backend |= {
            name: one for name, one in zip(("minReplicas", "maxReplicas"), given, strict=True) if one is not None
        }
        return
    least = min(1, most or 1) if least is None else least
    most = max(least, 1) if most is None else most
    if most < least:
        backend |= {"minReplicas": least, "maxReplicas": most}  # refused, as it stands
        return
    backend.setdefault("replicas", max(least, 1) if most > least else least)
    said = ""
    if most > least:
        annotations = booster.setdefault("metadata", {}).setdefault("annotations", {})
        annotations.setdefault(MIN_REPLICAS, str(least))
        annotations.setdefault(MAX_REPLICAS, str(most))
        said = _OLD_ANNOTATIONS.format(least=f'"{least}"', most=f'"{most}"')
    request.warnings.append(_OLD_BACKEND.format(replicas=backend["replicas"], annotations=said))


def refuse_model_booster(request: AdmissionRequest, reader: Reader) -> str:
    """Why a ModelBooster may not be written; empty if it may."""
    booster = msgspec.convert(request.object or {}, ModelBooster)
    for name in idle_annotations(booster.metadata.annotations):
        request.warnings.append(_IDLE.format(name=name))
    return denial(wrongs(booster))


def wrongs(booster: ModelBooster) -> Iterator[FieldError]:
    """All that is wrong, in the webhook's order."""
    backend = booster.spec.backend
    if backend.replicas > MOST_REPLICAS:
        said = f"replicas ({backend.replicas}) cannot exceed {MOST_REPLICAS}"
        yield invalid("spec.backend.replicas", backend.replicas, said)
    if backend.min_replicas is not None and backend.max_replicas is not None:
        said = f"it is more than maxReplicas ({backend.max_replicas})"
        yield invalid("spec.backend.minReplicas", backend.min_replicas, said)
    for error in wrong_annotations(booster.metadata.annotations):
        yield invalid("metadata.annotations", error.value, str(error))
    yield from _images(backend)
    yield from _worker_types(backend)
    yield from _ports(backend)
    yield from _addresses(backend)
    yield from _connectors(backend)


def _images(backend: ModelBackend) -> Iterator[FieldError]:
    for number, worker in enumerate(backend.workers):
        if not worker.image:
            continue
        if not worker.image.strip():
            said = "image cannot be empty or whitespace only"
        elif any(char.isspace() for char in worker.image):
            said = "image cannot contain whitespace"
        else:
            continue
        yield invalid(f"{_WORKERS}[{number}].image", worker.image, f"invalid container image reference: {said}")


def _worker_types(backend: ModelBackend) -> Iterator[FieldError]:
    workers = backend.workers
    if backend.type == BackendType.VLLM:
        if len(workers) != 1:
            yield invalid(_WORKERS, len(workers), "If backend type is 'vLLM', there must be exactly one worker")
        elif workers[0].type != WorkerType.SERVER:
            said = "If backend type is 'vLLM', the worker type must be 'server'"
            yield invalid(f"{_WORKERS}[0].type", workers[0].type, said)
    elif backend.type == BackendType.VLLM_DISAGGREGATED:
        for number, worker in enumerate(workers):
            if worker.type not in (WorkerType.PREFILL, WorkerType.DECODE):
                said = "If backend type is 'vLLMDisaggregated', all workers must be type 'prefill' or 'decode'"
                yield invalid(f"{_WORKERS}[{number}].type", worker.type, said)


def _ports(backend: ModelBackend) -> Iterator[FieldError]:
    try:
        port = engine_port(backend.workers)
    except ArgumentError as error:
        yield invalid(f"{_WORKERS}[{error.worker}].config.port", error.value, str(error))
        return
    if port == runtime_port(backend):
        yield invalid(f"{_WORKERS}[0].config.port", port, _TAKEN.format(port=port))


def _connectors(backend: ModelBackend) -> Iterator[FieldError]:
    try:
        kv_connector(backend)
    except ArgumentError as error:
        yield invalid(_WORKERS, backend.name, f"invalid kv connector configuration: {error}")


def _addresses(backend: ModelBackend) -> Iterator[FieldError]:
    """A model on a claim is only seen through the claim that is mounted as its cache."""
    model, cache = backend.model_uri, backend.cache_uri
    if not model.startswith("pvc://"):
        return
    path, claim = model.removeprefix("pvc://"), cache.removeprefix("pvc://").strip("/")
    source, mount = posixpath.normpath("/" + path.lstrip("/")), f"/{claim}"
    if not cache.startswith("pvc://"):
        yield invalid("spec.backend.cacheURI", cache, _NEEDS_PVC)
    elif ".." in path.split("/"):
        yield invalid("spec.backend.modelURI", model, "pvc:// modelURI must not contain '..' path segments")
    elif not claim or "/" in claim:
        yield invalid("spec.backend.cacheURI", cache, _ONE_CLAIM)
    elif source != mount and not source.startswith(f"{mount}/"):
        yield invalid("spec.backend.modelURI", model, _UNREACHABLE.format(source=source, mount=mount))
