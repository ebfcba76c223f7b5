"""AgentCube's own SDK as it comes from PyPI: router and workload manager at the gateway's address."""

import pytest

from hekla.testing.sandboxes import KEY

agentcube = pytest.importorskip("agentcube")


def test_a_code_interpreter_runs_code_and_keeps_files(served, tmp_path):
    with agentcube.CodeInterpreterClient(
        name="my-interpreter",
        namespace="default",
        workload_manager_url=served.url,
        router_url=served.url,
        auth_token=KEY,
    ) as client:
        assert client.execute_command("echo hi") == "hi\n"
        assert client.run_code("python", "print(6 * 7)").strip() == "42"
        client.write_file("some text", "a.txt")
        client.download_file("a.txt", str(tmp_path / "b.txt"))
        assert (tmp_path / "b.txt").read_text() == "some text"
        assert "a.txt" in [one["name"] for one in client.list_files(".")]


def test_a_session_needs_a_key(served):
    with pytest.raises(Exception, match="401"):
        agentcube.CodeInterpreterClient(
            name="my-interpreter",
            workload_manager_url=served.url,
            router_url=served.url,
            auth_token="wrong-key-of-nobody",
        )
