import gzip
import http.client
import json

import pytest

# What client-go and kubectl send, without Go: they ask for protobuf first and for JSON behind it.

GO = "application/vnd.kubernetes.protobuf,application/json"
TABLES = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)
PARTIAL = (
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (GO, "ServiceAccountList"),
        ("application/vnd.kubernetes.protobuf;q=0.9,*/*", "ServiceAccountList"),
        ("*/*", "ServiceAccountList"),
        (TABLES, "Table"),
        (f"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,{TABLES}", "Table"),
        (PARTIAL.replace("Metadata;", "MetadataList;"), "PartialObjectMetadataList"),
    ],
)
def test_json_is_what_they_get(platform, accept, kind):
    answer = platform.ask("GET", "/api/v1/namespaces/default/serviceaccounts", Accept=accept)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.document["kind"] == kind


def test_only_protobuf_is_406_and_says_what_there_is(platform):
    answer = platform.ask("GET", "/api/v1/namespaces/default/serviceaccounts", Accept="application/cbor")
    assert answer.status == 406
    assert "application/json" in answer.document["message"]


def test_protobuf_for_a_custom_resource_is_415_and_names_what_is_accepted(platform, namespace):
    path = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"
    answer = platform.ask("POST", path, b"k8s\x00\x0a\x00", Content_Type="application/vnd.kubernetes.protobuf")
    assert answer.status == 415
    assert "application/json" in answer.document["message"]


@pytest.mark.parametrize(
    "body", [b"k8s\x00", b"k8s\x00\xff\xff\xff\xff", b"nonsense", b"k8s\x00" + b"\x0a\xff\xff\xff\x7f"]
)
def test_protobuf_that_is_none_is_refused_with_a_sentence(platform, namespace, body):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    answer = platform.ask("POST", path, body, Content_Type="application/vnd.kubernetes.protobuf")
    assert answer.status in (400, 415)
    assert answer.document["message"]


def test_an_unknown_body_type_is_415(platform, namespace):
    answer = platform.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", b"<x/>", Content_Type="text/xml")
    assert answer.status == 415
    assert "application/json" in answer.document["message"]


def test_a_large_list_comes_packed_to_those_who_take_it(platform, namespace):
    for number in range(40):
        body = {"metadata": {"name": f"c{number}"}, "data": {"text": "x" * 5000}}
        assert platform.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body).status == 201
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    packed, plain = platform.ask("GET", path, Accept_Encoding="gzip"), platform.ask("GET", path)
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 10
    assert json.loads(gzip.decompress(packed.body)) == plain.document
    assert "content-encoding" not in plain.headers


def test_a_connection_serves_many_requests(platform):
    connection = http.client.HTTPSConnection("127.0.0.1", platform.port, context=platform.tls())
    connection.connect()
    sockets = set()
    for _ in range(20):
        connection.request("GET", "/api/v1/namespaces/default", headers={"Accept": GO})
        answer = connection.getresponse()
        assert json.loads(answer.read())["metadata"]["name"] == "default"
        sockets.add(connection.sock)
    assert len(sockets) == 1
    connection.close()


@pytest.mark.parametrize(
    "path", ["/api?timeout=32s", "/apis?timeout=32s", "/api/v1?timeout=32s", "/openapi/v3?timeout=32s"]
)
def test_discovery_takes_a_timeout(platform, path):
    assert platform.ask("GET", path, Accept="application/json").status == 200


def test_aggregated_discovery_comes_to_those_who_ask_for_it(platform):
    accept = (
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    )
    answer = platform.ask("GET", "/apis", Accept=accept)
    assert answer.headers["content-type"].startswith(
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    )
    assert "batch.volcano.sh" in {item["metadata"]["name"] for item in answer.document["items"]}
    assert platform.ask("GET", "/apis", Accept="application/json").document["kind"] == "APIGroupList"


def test_a_delete_with_options_in_its_body_or_query_is_understood(platform, namespace):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in ("a", "b"):
        platform.ask("POST", path, {"metadata": {"name": name}})
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    assert platform.ask("DELETE", f"{path}/a", options).status == 200
    assert platform.ask("DELETE", f"{path}/b?propagationPolicy=Foreground").status == 200
    assert platform.ask("GET", f"{path}/a").status == 404


def test_a_delete_of_another_uid_changes_nothing(platform, namespace):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    platform.ask("POST", path, {"metadata": {"name": "a"}})
    answer = platform.ask("DELETE", f"{path}/a", {"preconditions": {"uid": "0000"}})
    assert answer.status == 409
    assert platform.ask("GET", f"{path}/a").status == 200


def test_head_and_options_do_no_harm(platform):
    head = platform.ask("HEAD", "/api/v1/namespaces/default")
    assert (head.status, head.body) == (200, b"")
    assert platform.ask("OPTIONS", "/api/v1/namespaces/default").status in (403, 405)
