"""`hekla route`: what it prints of a replay and of one decision, and what it says of what cannot be."""

import asyncio
import gzip
import json
import sys

import pytest

from hekla.cli.commands.route import _facts, _own_router, _print_decision, _print_one
from hekla.cli.main import main
from hekla.simulation.routing import Replayed
from hekla.wire.messages import Response
from hekla.wire.server import Server

LINES = [
    json.dumps({"timestamp": 100 * n, "input_length": 1100, "output_length": 5, "hash_ids": [0, n % 3 + 1, 100 + n]})
    for n in range(30)
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(LINES).encode()))
    return str(path)


def test_a_replay_is_a_row_for_each_policy(trace, capsys):
    assert main(["route", "replay", trace, "--replicas", "2", "--policy", "soonest", "--policy", "llm-d"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("30 requests in ")
    assert [line.split()[0] for line in lines[2:]] == ["POLICY", "soonest", "llm-d"]


def test_a_replay_as_json_has_every_figure(trace, capsys, tmp_path):
    config = tmp_path / "routerConfiguration.yaml"
    config.write_text("scheduler:\n  policy: round-robin\n")
    assert main(["route", "replay", trace, "--speed", "1", "--config", str(config), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["requests"] == 30
    assert told["idealHitRate"] > 0
    [one] = told["policies"]
    assert one["policy"] == "routerConfiguration.yaml"
    assert set(one["ttftSeconds"]) == {"p50", "p90", "p99"}
    assert len(one["busySeconds"]) == 8


def test_a_decision_of_a_trace_is_explained(trace, capsys):
    assert main(["route", "explain", trace, "--request", "20", "--replicas", "2"]) == 0
    out = capsys.readouterr().out
    assert "1100 tokens, by soonest over 2 endpoints" in out
    assert "* engine-" in out


def test_a_running_router_is_asked(tmp_path, capsys):
    """A router's debug port, played by a server that answers what it was asked."""
    body = tmp_path / "body.json"
    body.write_text('{"model": "m"}')
    asked = []

    def answer(request):
        asked.append((request.target, request.headers["x-user"], request.body))
        if len(asked) in (2, 3):
            return Response(404 if len(asked) == 2 else 401, b'{"error": {"message": "no route takes model m"}}')
        return Response(body=json.dumps({"model": "m", "policy": "soonest", "tokens": 3, "prefill_rate": 8000.0,
                        "candidates": [], "chosen": None, "tied": [], "because": "no endpoint is ready"}).encode())  # fmt: skip

    async def story():
        server = Server()
        await server.start(answer)
        url = f"http://127.0.0.1:{server.port}"
        words = ["route", "explain", "--router", url, "--body", str(body), "-H", "x-user: ada"]
        try:
            return [await asyncio.to_thread(main, words) for _ in range(3)]
        finally:
            await server.stop(0)

    assert asyncio.run(story()) == [0, 1, 1]
    assert asked[0] == ("/debug/explain?path=%2Fv1%2Fchat%2Fcompletions", "ada", b'{"model": "m"}')
    told = capsys.readouterr()
    assert "no endpoint is ready" in told.out
    assert "the router refuses the request: no route takes model m, unless http://127.0.0.1:" in told.err
    assert (
        "the router refuses the request: no route takes model m; give it with -H 'Authorization: Bearer KEY'"
        in told.err
    )


def test_every_target_and_both_engines_of_a_pair_are_printed(capsys):
    def engine(name, scores):
        return {"name": name, "cached_tokens": 0, "queued_tokens": 7, "in_flight": 1, "estimated_ttft_s": 0.1,
                "scores": scores, "total": 7.5, "refused": None}  # fmt: skip

    def among(name, because, scores):
        return {"pool": "x", "policy": "soonest", "model": "m", "tokens": 3, "prefill_rate": 8000.0, "chosen": name,
                "tied": [], "because": because, "candidates": [engine(name, scores)]}  # fmt: skip

    prefill = among("p", "p: lowest cost", {"queue": 7.0, "uncached": 0.5})
    paired = among("d", "d: most room", {"KV taken": 0.2}) | {
        "prefill": prefill, "pair": {"prefill": ["p"], "decode": ["d"]}, "target": "ml/pd", "share": 0.75,
    }  # fmt: skip
    other = among("e", "e: lowest cost", {"queue": 7.0}) | {"target": "ml/old", "share": 0.25, "answer_tokens": 256}
    other["candidates"][0] |= {"estimated_answer_s": 5.12, "accepted_speculation": 0.8}
    paired["recorded"] = {"blocks": 9, "held": {"d.ml": 4}}
    other["recorded"] = {"unknown": "Redis did not answer"}
    _print_decision(paired | {"route": "ml/r", "otherTargets": [other]})
    out = capsys.readouterr().out
    assert "ml/r sends m 75% to ml/pd, 25% to ml/old" in out
    assert "ml/old, 25% of the requests:" in out
    assert "recorded in Redis, of 9 blocks: d.ml 4\n" in out
    assert "recorded in Redis: not known, Redis did not answer\n" in out
    assert "the pair: p prefills, d decodes" in out
    assert "answers have about 256 tokens" in out
    assert all(one in out for one in ("THEN", "5.120s", "DRAFTS KEPT", "80%"))
    header = next(line.split("   ") for line in out.splitlines() if "QUEUE" in line)
    assert sum("QUEUE" in cell for cell in header) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["replay", "TRACE", "--policy", "best"], 2, '--policy "best" is not known; choose from soonest'),
        (["replay", "nowhere.jsonl"], 1, "nowhere.jsonl cannot be read: No such file or directory"),
        (["replay", __file__], 1, "is no trace of LLM requests"),
        (["replay", "TRACE", "-o", "xml"], 2, '-o "xml" is not known'),
        (["replay", "TRACE", "--config", sys.executable], 1, "cannot be read: it is no text in UTF-8"),
        (["explain", "TRACE", "--request", "30"], 2, "--request 30 is not in the trace: it has 30 requests"),
        (["explain"], 2, "name a TRACE, or a request with --body"),
        (["explain", "--router", "http://127.0.0.1:1"], 2, "--router needs --body FILE"),
        (
            ["explain", "--router", "http://127.0.0.1:1", "--body", __file__],
            3,
            "no router answers at http://127.0.0.1:1: Connection refused",
        ),
        (
            ["explain", "--router", "nonsense", "--body", __file__],
            2,
            "--router nonsense is no URL; give http://HOST:PORT",
        ),
    ],
)
def test_what_cannot_be_is_said(words, code, said, trace, capsys):
    assert main(["route", *(trace if word == "TRACE" else word for word in words)]) == code
    assert said in capsys.readouterr().err


def test_who_is_refused_waits_for_ever_and_not_for_infs(capsys):
    refused = Replayed("kthena", 1, 2, 1.0, refused=2, busy_s=[1.0], computed=[0])
    _print_one(refused, is_first=False, turns=[], pace=1.0)
    assert capsys.readouterr().out.split()[:4] == ["kthena", "never", "never", "never"]
    assert json.loads(json.dumps(_facts(refused), allow_nan=False))["ttftSeconds"]["p90"] is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"x" * 1000, mtime=0)[:20], "is not whole: it begins as a gzip file and does not end as one"),
        (b"\x80\x81", "is no trace of LLM requests: it is no text"),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,many,10\n",
            'line 2: "2023-11-16 18:15:46.68,many,10" is no request',
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_a_sentence(content, said, tmp_path, capsys):
    (tmp_path / "odd").write_bytes(content)
    assert main(["route", "replay", str(tmp_path / "odd")]) == 1
    assert said in capsys.readouterr().err


def test_the_router_of_the_kubeconfigs_platform_is_asked(tmp_path, monkeypatch):
    (tmp_path / "router.debug").write_text("http://127.0.0.1:1\n")
    (tmp_path / "router.keys").write_text("ada: sk-x\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert _own_router() == ("http://127.0.0.1:1", ["authorization: Bearer sk-x"])
