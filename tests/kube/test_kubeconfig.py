import asyncio
import base64
import json
import stat
import sys

import pytest
import yaml

from hekla.kube.credentials import ClientCertificate, CredentialError
from hekla.kube.kubeconfig import KubeconfigError, in_cluster_connection, load_kubeconfig, write_kubeconfig


def write(path, *, current="dev", cluster=None, user=None, context=None, name="dev"):
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [{"name": name, "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **(context or {})}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def headers(connection):
    return dict(asyncio.run(_headers(connection.credentials)))


async def _headers(credentials):
    return await credentials.headers()


def test_a_token_and_inline_authority_are_read(tmp_path):
    ca = base64.b64encode(b"PEM").decode()
    file = write(
        tmp_path / "kc", cluster={"certificate-authority-data": ca}, user={"token": "t0"}, context={"namespace": "ml"}
    )
    connection = load_kubeconfig(file).connection()
    assert connection.server == "https://10.0.0.1:6443"
    assert connection.ca_pem == b"PEM"
    assert connection.namespace == "ml"
    assert headers(connection) == {"authorization": "Bearer t0"}


def test_of_several_files_the_first_to_name_something_wins(tmp_path, monkeypatch):
    one = write(tmp_path / "one", user={"token": "first"})
    two = write(tmp_path / "two", user={"token": "second"}, current="prod")
    other = write(tmp_path / "other", name="prod", user={"token": "prod"}, current="")
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", f"{missing}:{one}:{two}:{other}")
    config = load_kubeconfig()
    assert config.current_context == "dev"
    assert headers(config.connection()) == {"authorization": "Bearer first"}
    assert headers(config.connection("prod")) == {"authorization": "Bearer prod"}


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "ca.crt").write_bytes(b"CA")
    (tmp_path / "token").write_text("from-file\n")
    file = write(
        tmp_path / "kc", cluster={"certificate-authority": "ca.crt"}, user={"tokenFile": "token", "token": "old"}
    )
    connection = load_kubeconfig(file).connection()
    assert connection.ca_pem == b"CA"
    assert headers(connection) == {"authorization": "Bearer from-file"}


def test_a_token_file_is_read_again_after_a_refusal(tmp_path):
    (tmp_path / "token").write_text("one")
    file = write(tmp_path / "kc", user={"tokenFile": "token"})
    credentials = load_kubeconfig(file).connection().credentials
    assert dict(asyncio.run(_headers(credentials))) == {"authorization": "Bearer one"}
    assert not credentials.rejected()
    (tmp_path / "token").write_text("two")
    assert credentials.rejected()
    assert dict(asyncio.run(_headers(credentials))) == {"authorization": "Bearer two"}


def test_who_acts_as_another_says_so_with_every_request(tmp_path):
    """Left out, `hekla` acted with the rights of the administrator whose certificate stood beside `as`."""
    another = {"as": "dev", "as-groups": ["a", "b"], "as-uid": "7", "as-user-extra": {"acme/team": ["x"]}}
    connection = load_kubeconfig(write(tmp_path / "kc", user={"token": "t0", **another})).connection()
    assert list(asyncio.run(_headers(connection.credentials))) == [
        ("authorization", "Bearer t0"), ("impersonate-user", "dev"), ("impersonate-group", "a"), ("impersonate-group", "b"),
        ("impersonate-uid", "7"), ("impersonate-extra-acme%2Fteam", "x"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "user",
    [
        {"as-groups": ["a"]}, {"as": "d", "as-groups": "a"}, {"as": "two\nlines"}, {"as": "d", "as-groups": [None]},
        {"as": "d", "as-user-extra": {"scopes": "view"}}, {"as": "d", "as-user-extra": {"scopes": 5}},
        {"as": "d", "as-user-extra": {"scopes": {"view": 1}}},
    ],
)  # fmt: skip
def test_a_half_named_other_is_refused(tmp_path, user):
    with pytest.raises(KubeconfigError, match="as-user-extra"):
        load_kubeconfig(write(tmp_path / "kc", user=user)).connection()


def test_a_user_and_password_make_basic_authentication(tmp_path):
    file = write(tmp_path / "kc", user={"username": "ann", "password": "s3"})
    pair = base64.b64encode(b"ann:s3").decode()
    assert headers(load_kubeconfig(file).connection()) == {"authorization": f"Basic {pair}"}


def test_a_token_that_no_header_can_hold_is_refused_where_it_is_read_and_not_shown(tmp_path):
    (tmp_path / "token").write_text("\u201cSECRET\u201d")
    by_file = load_kubeconfig(write(tmp_path / "kc", user={"tokenFile": "token"})).connection()
    printed = {"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "\u201cSECRET\u201d"}}
    by_plugin = load_kubeconfig(plugin(tmp_path, f"print({json.dumps(json.dumps(printed))})")).connection()
    for one in (by_file, by_plugin):
        with pytest.raises(CredentialError, match="typographic quote") as refused:
            headers(one)
        assert "SECRET" not in str(refused.value)


def plugin(tmp_path, body, **fields):
    script = tmp_path / "plugin.py"
    script.write_text(body)
    spec = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(script)], **fields}
    return write(tmp_path / "kc", user={"exec": spec})


COUNTING = """
import json, os, pathlib
count = pathlib.Path(os.environ["COUNT"])
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = {"token": f"t{n}-" + info["spec"]["cluster"]["server"], "expirationTimestamp": os.environ.get("EXPIRES")}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


@pytest.mark.parametrize(("expires", "runs"), [("2999-01-01T00:00:00Z", 1), ("2001-01-01T00:00:00Z", 2)])
def test_a_plugin_is_asked_again_only_when_its_credential_has_expired(tmp_path, expires, runs):
    env = [{"name": "COUNT", "value": str(tmp_path / "count")}, {"name": "EXPIRES", "value": expires}]
    file = plugin(tmp_path, COUNTING, env=env, provideClusterInfo=True)

    async def scenario():
        credentials = load_kubeconfig(file).connection().credentials
        await credentials.headers()
        return dict(await credentials.headers())

    assert asyncio.run(scenario()) == {"authorization": f"Bearer t{runs}-https://10.0.0.1:6443"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raise SystemExit(3)", "failed with exit status 3"),
        ("print('hello')", "printed no ExecCredential"),
        ("import json; print(json.dumps({'apiVersion': 'v0'}))", "answered with apiVersion 'v0'"),
    ],
)
def test_a_plugin_that_fails_is_named(tmp_path, body, sentence):
    credentials = load_kubeconfig(plugin(tmp_path, body)).connection().credentials
    with pytest.raises(CredentialError, match=sentence):
        asyncio.run(_headers(credentials))


def test_a_plugin_that_is_not_installed_brings_its_hint(tmp_path):
    file = plugin(tmp_path, "", command="no-such-plugin-here", installHint="install it from example.org")
    with pytest.raises(CredentialError, match=r"cannot be run.*install it from example.org"):
        asyncio.run(_headers(load_kubeconfig(file).connection().credentials))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cluster": {"proxy-url": "http://p"}}, r"cluster 'dev' in '.*' asks for a proxy"),
        ({"cluster": {"server": "10.0.0.1"}}, "must begin with https://"),
        ({"cluster": {"certificate-authority": "nowhere"}}, "cannot be read: No such file"),
        ({"cluster": {"certificate-authority-data": "%%"}}, "is no base64"),
        ({"cluster": {"insecure-skip-tls-verify": True, "certificate-authority-data": "YQ=="}}, "remove one of them"),
        ({"cluster": {"insecure-skip-tls-verify": "yes"}}, "must be true or false"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "use an exec plug-in"),
        ({"user": {"client-certificate-data": "YQ=="}}, "only half of a client certificate; add client-key"),
        ({"user": {"exec": {"command": "x", "apiVersion": "v9"}}}, "must be one of"),
        ({"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}}, "has no command"),
        ({"current": "prod"}, "context 'prod' does not exist in .*there are: dev"),
        ({"current": ""}, "no current-context"),
        ({"context": {"cluster": "gone"}}, "names cluster 'gone', which does not exist; there are: dev"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused_with_a_sentence(tmp_path, changes, sentence):
    file = write(tmp_path / "kc", **changes)
    with pytest.raises(KubeconfigError, match=sentence):
        load_kubeconfig(file).connection()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is no YAML"),
        ("- one", "must be a mapping"),
        ("clusters: {}\nusers: x", "must be a list"),
        ("clusters:\n- name: a\n  cluster: [1]", "must be a mapping, not list"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path, text, sentence):
    file = tmp_path / "kc"
    file.write_text(text)
    with pytest.raises(KubeconfigError, match=sentence):
        load_kubeconfig(file)


def test_a_file_that_was_named_and_is_missing_is_refused(tmp_path):
    with pytest.raises(KubeconfigError, match="No such file"):
        load_kubeconfig(tmp_path / "nowhere")


def test_a_pod_uses_its_service_account(tmp_path):
    for name, text in (("ca.crt", "CA"), ("namespace", "ml"), ("token", "sa")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    connection = in_cluster_connection(environ, tmp_path)
    assert (connection.server, connection.namespace, connection.ca_pem) == ("https://[fd00::1]:443", "ml", b"CA")
    assert headers(connection) == {"authorization": "Bearer sa"}


def test_outside_a_pod_there_is_no_service_account(tmp_path):
    with pytest.raises(KubeconfigError, match="not a pod"):
        in_cluster_connection({}, tmp_path)


def test_a_written_kubeconfig_is_private_and_reads_back(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text("old")
    path.chmod(0o644)
    certificate = ClientCertificate(b"cert", b"key")
    write_kubeconfig(path, server="https://127.0.0.1:1", ca_pem=b"CA", token="t", client_certificate=certificate)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["kubeconfig"]
    connection = load_kubeconfig(path).connection()
    assert connection.ca_pem == b"CA"
    assert asyncio.run(connection.credentials.certificate()) == certificate
    assert json.dumps(yaml.safe_load(path.read_text()))
