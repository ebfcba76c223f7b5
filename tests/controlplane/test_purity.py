import subprocess
import sys

DECISIONS = (
    "deployment", "replica_set", "stateful_set", "daemon_set", "job", "cron_job", "endpoints", "disruption",
    "quota_status", "namespace_defaults", "node_lifecycle", "pod_gc", "owner_graph", "volume_protection",
)  # fmt: skip


def test_decisions_load_no_event_loop_and_no_server():
    program = (
        "import sys, importlib\n"
        f"for name in {DECISIONS!r}: importlib.import_module('hekla.controlplane.' + name)\n"
        "print([m for m in ('asyncio', 'hekla.kube.api_client', 'hekla.kube.clock', 'sqlite3') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
