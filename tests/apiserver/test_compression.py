import asyncio
import gzip
import json
import random
import urllib.request

import kubernetes

from hekla.apiserver.compression import compressed
from hekla.apiserver.handlers_read import STREAMED_BYTES
from hekla.testing.api_server import LiveApiServer

CMS = "/api/v1/namespaces/default/configmaps"
BIG = 1_000_000


def fill(server: LiveApiServer, *numbers: int) -> None:
    for number in numbers:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}"}, "data": {"k": "x" * BIG}}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(server.url + CMS, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request).read()


def listed(server: LiveApiServer, path: str = CMS, **headers: str) -> tuple[str, bytes]:
    with urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers)) as answer:
        return answer.headers.get("Content-Encoding", ""), answer.read()


def test_lists_sent_whole_and_in_pieces_are_compressed_for_who_asks() -> None:
    with LiveApiServer() as server:
        for count in (1, STREAMED_BYTES // BIG + 1):
            fill(server, *range(count > 1, count))
            plain = listed(server)
            packed = listed(server, **{"Accept-Encoding": "gzip"})
            assert (plain[0], packed[0]) == ("", "gzip")
            assert gzip.decompress(packed[1]) == plain[1]
            assert len(packed[1]) < len(plain[1]) // 50
            assert len(json.loads(plain[1])["items"]) == count
        # kubectl and client-go send what urllib sends; the official Python client asks when it is told to
        client = kubernetes.client.ApiClient(kubernetes.client.Configuration(host=server.url))
        client.set_default_header("Accept-Encoding", "gzip")
        items = kubernetes.client.CoreV1Api(client).list_namespaced_config_map("default").items
        assert [len(one.data["k"]) for one in items] == [BIG] * count


def test_short_answers_and_refused_codings_are_sent_as_they_are() -> None:
    with LiveApiServer() as server:
        assert listed(server, **{"Accept-Encoding": "gzip"})[0] == ""
        fill(server, 0)
        assert listed(server, **{"Accept-Encoding": "gzip;q=0, br"})[0] == ""
        assert listed(server, CMS + "?watch=1&timeoutSeconds=1", **{"Accept-Encoding": "gzip"})[0] == ""


def test_pieces_of_any_size_are_one_stream() -> None:
    dice = random.Random(4)
    pieces = [dice.randbytes(dice.choice((0, 1, 70_000))) for _ in range(30)]

    async def some():
        for piece in pieces:
            yield piece

    async def whole() -> bytes:
        return b"".join([piece async for piece in compressed(some())])

    assert gzip.decompress(asyncio.run(whole())) == b"".join(pieces)
