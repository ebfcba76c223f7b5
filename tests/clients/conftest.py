import itertools
import json

import pytest
from kubernetes import client, config

from hekla.testing.platform import running_platform

names = itertools.count()


@pytest.fixture(scope="session")
def platform():
    with running_platform() as started:
        yield started


@pytest.fixture(scope="session")
def admin(platform):
    """The official client, as the kubeconfig makes it."""
    return config.new_client_from_config(str(platform.kubeconfig))


@pytest.fixture
def namespace(platform):
    name = f"clients-{next(names)}"
    assert platform.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}}).status == 201
    # the controller that makes it for every namespace does not run here
    platform.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    return name


@pytest.fixture
def core(admin):
    return client.CoreV1Api(admin)


@pytest.fixture
def token_of(platform):
    """Makes a service account and gives its token."""

    def make(namespace, name="robot", **spec):
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        platform.ask("POST", path, {"metadata": {"name": name}})
        answer = platform.ask("POST", f"{path}/{name}/token", {"spec": spec})
        assert answer.status == 201, answer.body
        return answer.document["status"]["token"]

    return make


@pytest.fixture
def client_with(platform):
    """The official client with a token instead of the administrator's certificate."""

    def make(token):
        settings = client.Configuration()
        settings.host = platform.url
        settings.ssl_ca_cert = str(platform.data_dir / "pki" / "ca.crt")
        if token:
            settings.api_key = {"authorization": f"Bearer {token}"}
        return client.ApiClient(settings)

    return make


@pytest.fixture
def sentence():
    """The message of the Status in an ApiException."""
    return lambda caught: json.loads(caught.value.body)["message"]
