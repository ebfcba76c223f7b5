"""Reads kubeconfig files and says how to reach a cluster and as whom; writes ours.

    client = client_from_kubeconfig()                  # $KUBECONFIG, several files merged, or ~/.kube/config
    client = client_from_kubeconfig("kc.yaml", context="prod")
    client = client_in_cluster()                       # a pod's service account

`credentials.py` has the ways to authenticate, `https.py` the transport.
"""

import base64
import binascii
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from hekla.kube.api_client import USER_AGENT, ApiClient
from hekla.kube.credentials import (
    EXEC_VERSIONS,
    NO_TOKEN,
    ClientCertificate,
    Credentials,
    FixedCredentials,
    Impersonating,
    Plugin,
    PluginCredentials,
    TokenFile,
)
from hekla.kube.errors import KubeError
from hekla.kube.https import HttpsTransport
from hekla.kube.rate_limit import TokenBucket
from hekla.lib import plain_yaml
from hekla.wire.heads import may_be_told

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeconfigError(KubeError):
    """A kubeconfig that cannot be used; the sentence names the file, the entry and what it lacks."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Everything needed to talk to one cluster as one user."""

    server: str
    credentials: Credentials
    namespace: str = "default"
    ca_pem: bytes = b""
    is_insecure: bool = False
    tls_server_name: str = ""
    use_gzip: bool = True

    def transport(self) -> HttpsTransport:
        """A transport over this connection."""
        return HttpsTransport(
            self.server, credentials=self.credentials, ca_pem=self.ca_pem, is_insecure=self.is_insecure,
            tls_server_name=self.tls_server_name, use_gzip=self.use_gzip,
        )  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One named entry of a kubeconfig and the file it stands in, to which its paths are relative."""

    kind: str
    name: str
    fields: Mapping[str, Any]
    file: Path

    def error(self, complaint: str) -> KubeconfigError:
        """A refusal that names this entry."""
        return KubeconfigError(f"{self.kind} {self.name!r} in {str(self.file)!r} {complaint}")

    def text(self, key: str) -> str:
        """A text field; empty if it is absent."""
        value = self.fields.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(f"has {key}: {value!r}, which is no text; put it in quotes")
        return value

    def is_set(self, key: str) -> bool:
        """A boolean field."""
        value = self.fields.get(key, False)
        if not isinstance(value, bool):
            raise self.error(f"has {key}: {value!r}; it must be true or false")
        return value

    def path(self, key: str) -> Path | None:
        """A file field, relative to the kubeconfig's directory."""
        text = self.text(key)
        return self.file.parent / text if text else None

    def content(self, key: str) -> bytes:
        """What `<key>-data` holds in base64, or else the file that `<key>` names."""
        encoded = self.text(f"{key}-data")
        if encoded:
            try:
                return base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError) as error:
                raise self.error(f"has a {key}-data that is no base64: {error}") from error
        path = self.path(key)
        if path is None:
            return b""
        try:
            return path.read_bytes()
        except OSError as error:
            raise self.error(f"names {key} {str(path)!r}, which cannot be read: {error.strerror}") from error


@dataclass
class Kubeconfig:
    """One or several files, merged as kubectl merges them: the first to name something wins."""

    files: tuple[Path, ...]
    current_context: str = ""
    clusters: dict[str, Entry] = field(default_factory=dict)
    contexts: dict[str, Entry] = field(default_factory=dict)
    users: dict[str, Entry] = field(default_factory=dict)

    def connection(self, context: str = "") -> Connection:
        """How to connect in a context, or in the current one."""
        chosen = self._context(context)
        cluster = self._named(self.clusters, "cluster", chosen)
        user = self._named(self.users, "user", chosen) if chosen.text("user") else Entry("user", "", {}, chosen.file)
        server = cluster.text("server")
        if not server.startswith(("https://", "http://")):
            raise cluster.error(f"has server: {server!r}; it must begin with https:// or http://")
        if cluster.text("proxy-url"):
            raise cluster.error("asks for a proxy (proxy-url); Hekla connects directly, so remove it or use a tunnel")
        is_insecure = cluster.is_set("insecure-skip-tls-verify")
        ca_pem = cluster.content("certificate-authority")
        if is_insecure and ca_pem:
            raise cluster.error("has both a certificate-authority and insecure-skip-tls-verify; remove one of them")
        return Connection(
            server=server, ca_pem=ca_pem, is_insecure=is_insecure, tls_server_name=cluster.text("tls-server-name"),
            use_gzip=not cluster.is_set("disable-compression"), credentials=_credentials(user, cluster),
            namespace=chosen.text("namespace") or "default",
        )  # fmt: skip

    def _context(self, name: str) -> Entry:
        where = ", ".join(str(file) for file in self.files)
        wanted = name or self.current_context
        if not wanted:
            raise KubeconfigError(f"no current-context is set in {where}; name one with --context")
        if wanted not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise KubeconfigError(f"context {wanted!r} does not exist in {where}; there are: {known}")
        return self.contexts[wanted]

    def _named(self, entries: Mapping[str, Entry], key: str, context: Entry) -> Entry:
        name = context.text(key)
        if name not in entries:
            known = ", ".join(sorted(entries)) or "none"
            raise context.error(f"names {key} {name!r}, which does not exist; there are: {known}")
        return entries[name]


def kubeconfig_files(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """The files that $KUBECONFIG lists, or ~/.kube/config."""
    environ = os.environ if environ is None else environ
    listed = environ.get("KUBECONFIG", "")
    if listed:
        return tuple(Path(part) for part in listed.split(os.pathsep) if part)
    return (Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config",)


def load_kubeconfig(*files: str | Path) -> Kubeconfig:
    """Read and merge files; without any, those of the environment, of which some may be missing."""
    paths = tuple(Path(file) for file in files) or kubeconfig_files()
    config = Kubeconfig(paths)
    found = [path for path in paths if files or path.exists()]
    if not found:
        raise KubeconfigError(f"no kubeconfig at {', '.join(map(str, paths))}; set KUBECONFIG or name a file")
    for path in found:
        _merge(config, path)
    return config


def credential_files(*files: str | Path) -> tuple[Path, ...]:
    """The files themselves, as `load_kubeconfig` finds them, and those of tokens and keys that they name."""
    try:
        config = load_kubeconfig(*files)
    except KubeconfigError:
        return ()
    named = [user.path(key) for user in config.users.values() for key in ("tokenFile", "client-key")]
    return (*config.files, *(each for each in named if each is not None))


def client_from_kubeconfig(
    *files: str | Path, context: str = "", rate_limit: TokenBucket | None = None, user_agent: str = ""
) -> ApiClient:
    """A client for a kubeconfig's context."""
    connection = load_kubeconfig(*files).connection(context)
    return _client(connection, rate_limit, user_agent)


def in_cluster_connection(environ: Mapping[str, str] | None = None, directory: Path = SERVICE_ACCOUNT) -> Connection:
    """How a pod reaches the API server of its own cluster."""
    environ = os.environ if environ is None else environ
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeconfigError("this is not a pod of a cluster: KUBERNETES_SERVICE_HOST is not set")
    try:
        ca_pem = (directory / "ca.crt").read_bytes()
        namespace = (directory / "namespace").read_text().strip()
    except OSError as error:
        raise KubeconfigError(f"service account file {error.filename!r} cannot be read: {error.strerror}") from error
    bracketed = f"[{host}]" if ":" in host else host
    return Connection(
        server=f"https://{bracketed}:{port}", ca_pem=ca_pem, namespace=namespace or "default",
        credentials=TokenFile(directory / "token"),
    )  # fmt: skip


def client_in_cluster(*, rate_limit: TokenBucket | None = None, user_agent: str = "") -> ApiClient:
    """A client with the pod's service account."""
    return _client(in_cluster_connection(), rate_limit, user_agent)


def write_kubeconfig(
    path: str | Path,
    *,
    server: str,
    ca_pem: bytes = b"",
    token: str = "",
    client_certificate: ClientCertificate | None = None,
    name: str = "hekla",
    user: str = "admin",
    namespace: str = "default",
) -> None:
    """Write a kubeconfig that only its owner may read; it is whole or not there at any moment."""
    cluster: dict[str, Any] = {"server": server}
    if ca_pem:
        cluster["certificate-authority-data"] = base64.b64encode(ca_pem).decode()
    identity: dict[str, Any] = {"token": token} if token else {}
    if client_certificate is not None:
        identity["client-certificate-data"] = base64.b64encode(client_certificate.certificate).decode()
        identity["client-key-data"] = base64.b64encode(client_certificate.key).decode()
    context = {"cluster": name, "user": user, "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "contexts": [{"name": name, "context": context}],
        "users": [{"name": user, "user": identity}],
    }
    _write_private(Path(path), yaml.safe_dump(document, sort_keys=False))


def _client(connection: Connection, rate_limit: TokenBucket | None, user_agent: str) -> ApiClient:
    return ApiClient(connection.transport(), rate_limit=rate_limit, user_agent=user_agent or USER_AGENT)


def _merge(config: Kubeconfig, path: Path) -> None:
    document = _read(path)
    current = document.get("current-context")
    config.current_context = config.current_context or (current if isinstance(current, str) else "")
    for kind, entries in (("cluster", config.clusters), ("context", config.contexts), ("user", config.users)):
        for item in _items(document, f"{kind}s", path):
            name, fields = str(item.get("name", "")), item.get(kind) or {}
            if not isinstance(fields, Mapping):
                raise KubeconfigError(
                    f"{kind} {name!r} in {str(path)!r} must be a mapping, not {type(fields).__name__}"
                )
            entries.setdefault(name, Entry(kind, name, fields, path))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = plain_yaml.load(path.read_text())
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {str(path)!r} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"kubeconfig {str(path)!r} is no YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise KubeconfigError(f"kubeconfig {str(path)!r} must be a mapping with clusters, contexts and users")
    return document


def _items(document: Mapping[str, Any], key: str, path: Path) -> Sequence[Mapping[str, Any]]:
    items = document.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise KubeconfigError(f"{key} in {str(path)!r} must be a list of entries with a name")
    return items


def _credentials(user: Entry, cluster: Entry) -> Credentials:
    own, named = _own_credentials(user, cluster), tuple(_impersonation(user))
    return Impersonating(own, named) if named else own


def _impersonation(user: Entry) -> Iterator[tuple[str, str]]:
    """Headers of a user that acts as another (`as`): who left them out would act with rights that were laid aside."""
    name, extra = user.text("as"), user.fields.get("as-user-extra") or {}
    groups, uid = user.fields.get("as-groups") or [], user.text("as-uid")
    if not _are_texts(groups) or not isinstance(extra, Mapping) or not all(map(_are_texts, extra.values())):
        raise user.error(
            "has as-groups that are no list of texts, or as-user-extra that is no mapping to lists of texts"
        )
    if (groups or uid or extra) and not name:
        raise user.error("has as-groups, as-uid or as-user-extra, and no as: name the user to act as")
    found = [("impersonate-user", name)] if name else []
    found += [("impersonate-group", group) for group in groups]
    found += [("impersonate-uid", uid)] if uid else []
    for key, values in extra.items():
        found += [(f"impersonate-extra-{quote(str(key), safe='')}", value) for value in values]
    if not all(may_be_told(value) for _, value in found):
        raise user.error("names in as, as-groups, as-uid or as-user-extra what no header can hold")
    yield from found


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _own_credentials(user: Entry, cluster: Entry) -> Credentials:
    certificate = _client_certificate(user)
    if user.fields.get("exec"):
        return PluginCredentials(_plugin(user, cluster))
    if user.fields.get("auth-provider"):
        raise user.error("uses an auth-provider, which Kubernetes has removed; use an exec plug-in instead")
    token, token_file = user.text("token"), user.path("tokenFile")
    if token_file is not None:
        # kubectl lets the file win over a token beside it.
        return TokenFile(token_file, client_certificate=certificate)
    if not may_be_told(token):
        raise KubeconfigError(f"the token of user {user.name!r} in {str(user.file)!r} {NO_TOKEN}")
    return FixedCredentials(token, user.text("username"), user.text("password"), certificate)


def _client_certificate(user: Entry) -> ClientCertificate | None:
    certificate, key = user.content("client-certificate"), user.content("client-key")
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise user.error(f"has only half of a client certificate; add {missing} or {missing}-data")
    return ClientCertificate(certificate, key) if certificate else None


def _plugin(user: Entry, cluster: Entry) -> Plugin:
    fields = user.fields["exec"]
    spec = Entry("exec plug-in of user", user.name, fields if isinstance(fields, Mapping) else {}, user.file)
    version, command = spec.text("apiVersion"), spec.text("command")
    if version not in EXEC_VERSIONS:
        raise spec.error(f"has apiVersion {version!r}; it must be one of {', '.join(EXEC_VERSIONS)}")
    if not command:
        raise spec.error("has no command")
    if spec.text("interactiveMode") == "Always":
        raise spec.error("wants to ask on a terminal (interactiveMode: Always); Hekla runs it without one")
    if os.sep in command:
        command = str(spec.file.parent / command)
    env = {str(item.get("name")): str(item.get("value", "")) for item in spec.fields.get("env") or ()}
    args = tuple(str(arg) for arg in spec.fields.get("args") or ())
    info = _cluster_info(cluster) if spec.is_set("provideClusterInfo") else None
    return Plugin(
        api_version=version, command=command, args=args, env=env, install_hint=spec.text("installHint"), cluster=info
    )


def _cluster_info(cluster: Entry) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.text("server")}
    ca_pem = cluster.content("certificate-authority")
    if ca_pem:
        info["certificate-authority-data"] = base64.b64encode(ca_pem).decode()
    if cluster.is_set("insecure-skip-tls-verify"):
        info["insecure-skip-tls-verify"] = True
    if cluster.text("tls-server-name"):
        info["tls-server-name"] = cluster.text("tls-server-name")
    for extension in cluster.fields.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    # O_EXCL and 0600 from the first byte: nobody can read the token in between, or have put a link there.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
