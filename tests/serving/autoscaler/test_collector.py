"""What is read from pods, and what is said of those that tell nothing."""

import asyncio
from typing import Any

from hekla.serving.autoscaler.collector import OLD_ENOUGH_S, Collector
from hekla.serving.autoscaler.measuring import Look
from hekla.wire.messages import Response


class Engines:
    async def request(self, method: str, url: str, **_: Any) -> Response:
        return Response(
            200, body=b'# TYPE ttft histogram\nttft_bucket{le="1"} 3\nttft_bucket{le="+Inf"} 3\nttft_count 3\n'
        )

    async def close(self) -> None: ...


def look(pod: str) -> Look:
    return Look(pod, f"10.0.0.{pod}", 8000, "/metrics", {"ttft": "ttft"})


def test_an_engine_in_its_first_minute_is_no_trouble_where_others_are_read() -> None:
    async def story() -> None:
        collector = Collector(Engines())  # type: ignore[arg-type]  # all that it calls
        first = await collector.ask([look("1")], 0.0)
        assert first.whys == {"ttft": "ttft is a histogram, and its first minute is being counted"}
        later = await collector.ask([look("1"), look("2")], OLD_ENOUGH_S)
        assert [pod for pod, _ in later.answers] == ["1"]
        assert later.whys == {}

    asyncio.run(story())
