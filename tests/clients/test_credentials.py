import base64
import datetime
import ssl
import urllib.error
import urllib.request

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kubernetes import client
from kubernetes.client.exceptions import ApiException

RBAC = "rbac.authorization.k8s.io"


def bind(platform, namespace, role, *subjects):
    body = {
        "metadata": {"name": f"{role}-here"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": list(subjects),
    }
    assert platform.ask("POST", f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings", body).status == 201


def account(namespace, name="robot"):
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def test_who_may_view_one_namespace_is_refused_elsewhere_with_kubernetes_sentence(
    platform, namespace, token_of, client_with, sentence
):
    token = token_of(namespace)
    bind(platform, namespace, "view", account(namespace))
    core = client.CoreV1Api(client_with(token))
    assert core.list_namespaced_pod(namespace).items == []
    with pytest.raises(ApiException) as caught:
        core.list_namespaced_pod("kube-system")
    assert caught.value.status == 403
    assert sentence(caught) == (
        f'pods is forbidden: User "system:serviceaccount:{namespace}:robot" cannot list resource "pods" in API group "" '
        'in the namespace "kube-system"'
    )


def test_who_may_view_may_not_write_nor_read_secrets(platform, namespace, token_of, client_with, sentence):
    token = token_of(namespace)
    bind(platform, namespace, "view", account(namespace))
    core = client.CoreV1Api(client_with(token))
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_secret("s", namespace)
    assert 'secrets "s" is forbidden' in sentence(caught)
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="c")))
    assert "cannot create resource" in sentence(caught)


def test_a_binding_that_is_taken_away_takes_effect_at_once(platform, namespace, token_of, client_with):
    token = token_of(namespace)
    bind(platform, namespace, "view", account(namespace))
    core = client.CoreV1Api(client_with(token))
    core.list_namespaced_pod(namespace)
    platform.ask("DELETE", f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings/view-here")
    with pytest.raises(ApiException) as caught:
        core.list_namespaced_pod(namespace)
    assert caught.value.status == 403


def test_a_token_dies_with_its_account(platform, namespace, token_of):
    token = token_of(namespace)
    assert platform.ask("GET", "/version", token=token).status == 200
    platform.ask("DELETE", f"/api/v1/namespaces/{namespace}/serviceaccounts/robot")
    assert platform.ask("GET", "/version", token=token).status == 401


def test_who_am_i_tells_name_groups_and_uid(client_with, namespace, token_of):
    review = client.AuthenticationV1Api(client_with(token_of(namespace))).create_self_subject_review(
        client.V1SelfSubjectReview()
    )
    who = review.status.user_info
    assert who.username == f"system:serviceaccount:{namespace}:robot"
    assert set(who.groups) == {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
    assert who.uid


def test_a_token_review_tells_a_good_token_from_garbage(admin, namespace, token_of):
    reviews = client.AuthenticationV1Api(admin)

    def reviewed(token):
        return reviews.create_token_review(client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token))).status

    good = reviewed(token_of(namespace))
    assert (good.authenticated, good.user.username) == (True, f"system:serviceaccount:{namespace}:robot")
    assert not reviewed("garbage").authenticated


@pytest.mark.parametrize("damage", ["garbage", "other-signature", "none-algorithm", "foreign-audience", "huge"])
def test_a_wrong_token_is_401_and_never_anonymous(platform, namespace, token_of, damage):
    good = token_of(namespace)
    head, body, signature = good.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    wrong = {
        "garbage": "garbage",
        "other-signature": f"{head}.{body}.{'A' * len(signature)}",
        "none-algorithm": f"{none}.{body}.",
        "foreign-audience": token_of(namespace, "elsewhere", audiences=["https://other.example"]),
        "huge": "x" * 20_000,
    }[damage]
    # /version is open to everybody, so only the credential can be what is refused
    answer = platform.ask("GET", "/version", token=wrong)
    assert answer.status == 401
    assert answer.document["reason"] == "Unauthorized"


def test_an_expired_token_is_401(platform, namespace, token_of):
    # signed with the platform's own key, an hour ago
    from hekla.apiserver.auth.tokens import Claims, TokenSigner

    token_of(namespace)
    account = platform.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/robot").document["metadata"]
    signer = TokenSigner((platform.data_dir / "pki" / "tokens.key").read_bytes())
    now = int(datetime.datetime.now(datetime.UTC).timestamp())

    def signed(expires_at):
        claims = Claims(namespace=namespace, account="robot", account_uid=account["uid"], expires_at=expires_at)
        return signer.sign(claims, issued_at=now - 7200)

    assert platform.ask("GET", "/version", token=signed(now + 3600)).status == 200
    assert platform.ask("GET", "/version", token=signed(now - 3600)).status == 401


def test_nobody_sees_health_and_version_and_nothing_else(platform):
    assert platform.ask("GET", "/version", token="").status == 200
    assert platform.ask("GET", "/readyz", token="").status == 200
    answer = platform.ask("GET", "/api/v1/namespaces", token="")
    assert answer.status == 403
    assert answer.document["message"] == (
        'namespaces is forbidden: User "system:anonymous" cannot list resource "namespaces" in API group "" '
        "at the cluster scope"
    )


def test_a_certificate_of_another_authority_is_refused_in_the_handshake(platform, tmp_path):
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
            x509.NameAttribute(NameOID.COMMON_NAME, "mallory"),
        ]
    )
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(now - datetime.timedelta(hours=1))
    certificate = builder.not_valid_after(now + datetime.timedelta(hours=1)).sign(key, hashes.SHA256())
    pem = tmp_path / "mallory.pem"
    pem.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = platform.tls(is_admin=False)
    context.load_cert_chain(pem)
    # in TLS 1.3 the client learns of it when it reads for the first time
    with (
        pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)),
        urllib.request.urlopen(f"{platform.url}/version", context=context),
    ):
        pass
    assert platform.ask("GET", "/version").status == 200


def test_access_reviews_answer_for_oneself_and_for_others(platform, admin, namespace, token_of, client_with):
    token = token_of(namespace)
    bind(platform, namespace, "edit", account(namespace))
    mine = client.AuthorizationV1Api(client_with(token))

    def may(verb, resource, where):
        attributes = client.V1ResourceAttributes(verb=verb, resource=resource, namespace=where)
        spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        return mine.create_self_subject_access_review(client.V1SelfSubjectAccessReview(spec=spec)).status

    assert may("create", "pods", namespace).allowed
    assert not may("create", "pods", "kube-system").allowed
    attributes = client.V1ResourceAttributes(verb="delete", resource="pods", namespace=namespace)
    spec = client.V1SubjectAccessReviewSpec(
        user=f"system:serviceaccount:{namespace}:robot", resource_attributes=attributes
    )
    asked = client.AuthorizationV1Api(admin).create_subject_access_review(client.V1SubjectAccessReview(spec=spec))
    assert asked.status.allowed
    assert "edit-here" in asked.status.reason


def test_a_rules_review_lists_what_one_may_do(platform, namespace, token_of, client_with):
    token = token_of(namespace)
    bind(platform, namespace, "view", account(namespace))
    review = client.AuthorizationV1Api(client_with(token)).create_self_subject_rules_review(
        client.V1SelfSubjectRulesReview(spec=client.V1SelfSubjectRulesReviewSpec(namespace=namespace))
    )
    pods = [rule for rule in review.status.resource_rules if "pods" in (rule.resources or [])]
    assert {verb for rule in pods for verb in rule.verbs} == {"get", "list", "watch"}
    assert any("/version" in rule.non_resource_urls for rule in review.status.non_resource_rules)


def test_impersonation_gives_the_rights_of_the_other_and_no_more(platform, namespace):
    bind(platform, namespace, "view", {"kind": "User", "name": "ann", "apiGroup": RBAC})
    path = f"/api/v1/namespaces/{namespace}/pods"
    assert platform.ask("GET", path, Impersonate_User="ann").status == 200
    refused = platform.ask("GET", "/api/v1/namespaces/kube-system/pods", Impersonate_User="ann")
    assert refused.status == 403
    assert 'User "ann" cannot list' in refused.document["message"]
    through_group = {"Impersonate_User": "bob", "Impersonate_Group": "system:masters"}
    assert platform.ask("GET", "/api/v1/namespaces/kube-system/pods", **through_group).status == 200


def test_who_may_not_impersonate_is_refused(platform, namespace, token_of):
    token = token_of(namespace)
    refused = platform.ask("GET", "/version", token=token, Impersonate_User="system:admin")
    assert refused.status == 403
    assert 'users "system:admin" is forbidden' in refused.document["message"]


def test_nobody_gives_away_rights_that_they_lack(platform, namespace, token_of, client_with, sentence):
    token = token_of(namespace)
    bind(platform, namespace, "admin", account(namespace))
    subject = {"kind": "User", "name": "eve", "apiGroup": RBAC}
    body = {
        "metadata": {"name": "grab"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [subject],
    }
    answer = platform.ask("POST", f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings", body, token=token)
    assert answer.status == 403
    assert "is attempting to grant RBAC permissions not currently held" in answer.document["message"]
