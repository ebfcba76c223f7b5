"""Engines' pages of metrics: vLLM's, SGLang's, several ranks of one engine, and pages that lie."""

import pytest

from hekla.serving.router.scraping import MOST_LABELS, MOST_SERIES, Totals, read_adapters, read_sample

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 20.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 4.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 400.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.8e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 30.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 100.0
"""


def test_a_page_of_vllms_is_read() -> None:
    sample, totals = read_sample(VLLM, Totals(ttft=(8.0, 16.0), tpot=(3.0, 300.0), accepted=(10.0, 60.0)))
    assert (sample.running, sample.waiting, sample.kv_usage, sample.cache_tokens) == (3, 2, 0.25, 16_000)
    assert (sample.ttft_s, sample.tpot_s, sample.acceptance) == (0.5, 0.01, 0.5)
    assert (sample.running_adapters, sample.waiting_adapters, sample.max_adapters) == ({"a", "b"}, {"c"}, 4)
    assert totals == Totals(ttft=(10.0, 20.0), tpot=(4.0, 400.0), accepted=(30.0, 100.0))


def test_times_are_those_since_the_last_page_and_unknown_without_one() -> None:
    sample, totals = read_sample(VLLM, None)
    assert sample.ttft_s is None
    again, _ = read_sample(VLLM, totals)
    assert again.ttft_s is None, "nothing was answered meanwhile"
    restarted, _ = read_sample(VLLM, Totals(ttft=(100.0, 200.0)))
    assert restarted.ttft_s is None, "the engine began anew"


def test_engines_of_a_data_parallel_group_are_added_up() -> None:
    page = VLLM + VLLM.replace('engine="0"', 'engine="1"')
    sample, _ = read_sample(page, None)
    assert (sample.running, sample.waiting, sample.kv_usage, sample.cache_tokens) == (6, 4, 0.25, 32_000)


def test_ranks_of_tensor_parallelism_repeat_what_one_says() -> None:
    page = "".join(
        f'sglang:num_running_reqs{{tp_rank="{tp}",dp_rank="{dp}"}} 5\n'
        f'sglang:num_queue_reqs{{tp_rank="{tp}",dp_rank="{dp}"}} 1\n'
        f'sglang:token_usage{{tp_rank="{tp}",dp_rank="{dp}"}} 0.{dp + 1}\n'
        for tp in range(4)
        for dp in range(2)
    )
    sample, _ = read_sample(page, None)
    assert (sample.running, sample.waiting) == (10, 2)
    assert sample.kv_usage == pytest.approx(0.15)


def test_those_who_wait_may_be_counted_by_reason() -> None:
    page = "".join(f'vllm:num_requests_waiting{{engine="0",reason="{one}"}} 2\n' for one in ("capacity", "deferred"))
    assert read_sample(page, None)[0].waiting == 4


@pytest.mark.parametrize(
    "page",
    [
        "",
        "not metrics at all \x00\xff",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting -5\nvllm:kv_cache_usage_perc +Inf\n",
        "vllm:num_requests_running 1e300\nvllm:num_requests_waiting many\nvllm:kv_cache_usage_perc{",
        'vllm:cache_config_info{block_size="x",num_gpu_blocks="-1"} 1\n',
        f'vllm:cache_config_info{{block_size="{"9" * 5000}",num_gpu_blocks="1"}} 1\n',
        f'vllm:lora_requests_info{{max_lora="{"9" * 5000}"}} 1\n',
    ],
)
def test_what_makes_no_sense_is_unknown(page: str) -> None:
    sample, _ = read_sample(page, Totals())
    assert (sample.running, sample.waiting, sample.kv_usage, sample.cache_tokens) == (None, None, None, None)
    assert (sample.ttft_s, sample.tpot_s, sample.acceptance) == (None, None, None)


def test_a_cache_is_never_fuller_than_full() -> None:
    assert read_sample("vllm:kv_cache_usage_perc 7.5\n", None)[0].kv_usage == 1.0


def test_adapters_are_the_models_that_have_a_parent() -> None:
    listed = b'{"object":"list","data":[{"id":"base","parent":null},{"id":"sql","parent":"base"},{"id":"x"}]}'
    assert read_adapters(listed) == {"sql"}
    assert read_adapters(b'{"data": 5}') is None


def test_a_page_without_end_is_read_to_a_bound() -> None:
    """All of 8 MB kept every request waiting for 2.3 s, once a second."""
    line = 'vllm:num_requests_waiting{{engine="{}",reason="x"}} 1\n'
    sample, _ = read_sample("".join(line.format(number) for number in range(MOST_SERIES + 500)), None)
    assert sample.waiting == MOST_SERIES
    long = f'vllm:num_requests_waiting{{a="{"x" * MOST_LABELS}"}} 1\nvllm:num_requests_running 3\n'
    assert read_sample(long, None)[0].running is None
    assert read_sample(f"vllm:num_requests_running 3\n{long}", None)[0].running == 3
