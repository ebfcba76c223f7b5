import asyncio
import re
import sys
from pathlib import Path

import pytest

from hekla.testing.embedded import embedded_cluster
from hekla.wire.server import Server

HERE = Path(__file__).parent


async def replayed() -> str:
    async with embedded_cluster() as cluster:
        wire = Server()
        await wire.start(cluster.server.handle)
        command = [HERE / "compare.py", HERE / "controllers.steps.yaml", HERE / "controllers.jsonl", "-v"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *map(str, command),
            "--server",
            f"http://127.0.0.1:{wire.port}",
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        await wire.stop(grace_s=1)
        return said.decode()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_controllers_do_what_a_real_cluster_did() -> None:
    said = asyncio.run(replayed())
    figures = {word: (int(got), int(of)) for word, got, of in re.findall(r"(status|body|message) (\d+)/(\d+)", said)}
    assert figures["status"] == (56, 56), said
    assert figures["body"] == (56, 56), said
    assert figures["message"] == (5, 5), said
