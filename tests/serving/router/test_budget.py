"""What a chat and a chunk cost in the router's own code, counted in Python's calls and instructions: no load changes that.

Counts of today with a tenth to spare. Whoever needs more says here what for; whoever finds less lowers them.
`python -m bench serving_budget` shows the parts.
"""

from bench import serving_budget as bench

CALLS_OF_A_CHAT = 84
CALLS_OF_A_CHUNK = 2
INSTRUCTIONS_OF_A_CHUNK = 90


def test_a_chat_costs_no_more_calls_than_its_budget():
    rig = bench.warm(is_stream=False)
    calls, _ = bench.counted(rig.round, 1)
    assert calls.total() / bench.ROUND <= CALLS_OF_A_CHAT, calls
    assert not calls["else"], "a part of the path that the bench does not know"


def test_every_chat_of_the_bench_is_answered_and_written_down():
    rig = bench.warm(is_stream=False)
    for _ in range(bench.UNDER_WAY):
        rig.answer()
    assert len(rig.books()) == bench.UNDER_WAY
    assert not rig.house.under_way
    counts = [line for line in rig.metrics.text(rig.house).decode().splitlines() if line.startswith("kthena_router_requests_total")]  # fmt: skip
    assert [line.rpartition(" ")[2] for line in counts] == [str(8 * bench.UNDER_WAY)]
    assert 'status_code="200"' in counts[0]


def test_a_chunk_of_a_stream_takes_the_short_way():
    rig = bench.warm(is_stream=True)
    connection = rig.asked[0].connection
    head, first, chunk = bench.stream()[:3]
    connection.data_received(head)
    connection.data_received(first)
    calls, instructions = bench.counted(lambda: connection.data_received(chunk), 10)
    assert calls.total() / 10 <= CALLS_OF_A_CHUNK, calls
    assert instructions.total() / 10 <= INSTRUCTIONS_OF_A_CHUNK, instructions
