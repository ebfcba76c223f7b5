"""Kthena's routerConfiguration.yaml, right and wrong."""

import pytest

from hekla.serving.router.choosing import Chain
from hekla.serving.router.configuration import Auth, ConfigurationError, Configured, read_configuration
from hekla.serving.router.policies.least_latency import LeastLatency
from hekla.serving.router.policies.least_request import LeastRequest
from hekla.serving.router.policies.prefix import Prefix
from hekla.serving.router.policies.prefix_affinity import PrefixAffinity
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.recipes import RECIPES, Sight

KTHENA = """\
scheduler:
  pluginConfig:
  - {name: least-request, args: {maxWaitingRequests: 7}}
  - {name: least-latency, args: {TTFTTPOTWeightFactor: 0.25}}
  - {name: prefix-cache,  args: {blockSizeToHash: 32, maxBlocksToMatch: 64, maxHashCacheSize: 500, topKMatches: 3}}
  plugins:
    Filter: {enabled: [least-request, lora-affinity], disabled: [lora-affinity]}
    Score:
      enabled: [{name: least-request, weight: 1}, {name: least-latency, weight: 2}, {name: prefix-cache, weight: 3}]
auth: {issuer: "https://issuer", audiences: [a, b], jwksUri: "https://issuer/keys"}
"""


def test_kthenas_file_is_read_to_the_letter():
    read = read_configuration(KTHENA)
    assert read.recipe.make() == Chain(
        filters=(LeastRequest(max_waiting=7),),
        scorers=(
            (LeastRequest(max_waiting=7), 1.0),
            (LeastLatency(ttft_weight=0.25), 2.0),
            (Prefix(top_k=3, seen_tokens=512), 3.0),
        ),
    )
    assert read.recipe.sight == Sight(block_bytes=32, most_blocks=64, capacity=500, follows_cache=False)
    assert read.auth == Auth("https://issuer", ("a", "b"), "https://issuer/keys")
    assert read.warnings == ()


@pytest.mark.parametrize("text", ["", "\n", "scheduler: {}", "scheduler:", "auth:", "scheduler: {pluginConfig: []}"])
def test_a_file_that_chooses_nothing_gets_the_default(text):
    read = read_configuration(text)
    assert read.recipe.make() == Soonest()
    assert read.auth is None


def test_a_policy_can_be_named_as_a_whole():
    for name, recipe in RECIPES.items():
        assert read_configuration(f"scheduler: {{policy: {name}}}").recipe is recipe


def test_our_own_plugins_stand_beside_kthenas():
    read = read_configuration(
        "scheduler:\n  pluginConfig: [{name: prefix-affinity, args: {share: 0.5, patienceSeconds: 2}}]\n"
        "  plugins: {Filter: {enabled: [prefix-affinity]}, Score: {enabled: [token-load]}}"
    )
    assert read.recipe.make().filters == (PrefixAffinity(share=0.5, patience_s=2),)


def test_random_is_left_out_beside_others_and_that_is_told():
    read = read_configuration("scheduler: {plugins: {Score: {enabled: [{name: random}, {name: gpu-usage}]}}}")
    assert [one.name for one, _ in read.recipe.make().scorers] == ["gpu-usage"]
    assert read.warnings == ('the score "random" is left out, as it stands beside others',)
    alone = read_configuration("scheduler: {plugins: {Score: {enabled: [{name: random}]}}}")
    assert [one.name for one, _ in alone.recipe.make().scorers] == ["random"]


def test_what_nobody_reads_is_told_and_left_out():
    read = read_configuration("scheduler:\n  pluginConfig:\n  - name: least-request\n    args: {maxWaiting: 3}\n")
    assert read.warnings == (
        'line 4: the arguments of least-request has "maxWaiting", which nobody reads; known are maxWaitingRequests',
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "scheduler:\n  plugins:\n    Score:\n      enabled:\n      - {name: prefix-cash}",
            "line 5: there is no Score plug-in 'prefix-cash'; there are least-request, gpu-usage,",
        ),
        ("scheduler: {plugins: {Filter: {enabled: [gpu-usage]}}}", "line 1: there is no Filter plug-in 'gpu-usage'"),
        ("scheduler: {plugins: {Filter: {enabled: [[x]]}}}", "line 1: a plug-in of Filter is ['x']; expected its name"),
        ("scheduler: {plugins: {Filter: {enabled: 7}}}", "line 1: enabled is 7; expected a list"),
        ("scheduler: {plugins: 7}", "line 1: plugins is 7; expected a mapping"),
        ("scheduler:\n  pluginConfig: [{name: nix}]", "line 2: there is no plug-in 'nix'"),
        ("scheduler:\n  pluginConfig: [7]", "line 2: an entry of pluginConfig is {name: ..., args: {...}}"),
        (
            "scheduler:\n  pluginConfig:\n  - name: least-latency\n    args:\n      TTFTTPOTWeightFactor: 2",
            "line 5: TTFTTPOTWeightFactor of least-latency is 2; expected a number from 0 to 1",
        ),
        (
            "scheduler: {pluginConfig: [{name: least-request, args: {maxWaitingRequests: ten}}]}",
            "line 1: maxWaitingRequests of least-request is 'ten'; expected a whole number of 1 or more",
        ),
        (
            "scheduler: {plugins: {Score: {enabled: [{name: gpu-usage, weight: -1}]}}}",
            "line 1: the weight of gpu-usage is -1; expected a number of 0 or more",
        ),
        ("scheduler: {policy: best}", "line 1: there is no policy 'best'; there are soonest, round-robin,"),
        (
            "scheduler:\n  policy: llm-d\n  plugins: {Score: {enabled: [random]}}",
            "line 2: scheduler has both policy and plugins; keep one",
        ),
        ("auth: {jwksUri: https://x}", "line 1: auth has no issuer; expected the `iss` of the tokens to take"),
        ("auth: {issuer: x, jwksUri: x}", "line 1: auth.jwksUri is 'x'; expected the URL of the issuer's keys"),
        ("auth: {issuer: x, jwksUri: https://x, audiences: a}", "line 1: auth.audiences is a list of names"),
        ("auth: {issuer: x, jwksUri: https://x, audiences: 5}", "line 1: auth.audiences is a list of names"),
        (
            "scheduler: {plugins: {Score: {enabled: [{name: gpu-usage, weight: 1" + "0" * 309 + "}]}}}",
            "line 1: the weight of gpu-usage is 1",
        ),
        ("a: !!bool x", "line 1: not readable as YAML: a value is not what its tag says"),
        ("a: !!timestamp x", "line 1: not readable as YAML: a value is not what its tag says"),
        ("a: !!map [x]", "line 1: not readable as YAML: a value is not what its tag says"),
        ("scheduler: [", "line 1: not readable as YAML"),
        ("scheduler: {}\nscheduler: {}", 'line 2: "scheduler" stands here a second time; keep one'),
        ("7", "expected a mapping with `scheduler` and `auth`"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_line(text, sentence):
    with pytest.raises(ConfigurationError) as refused:
        read_configuration(text)
    assert str(refused.value).startswith(f"routerConfiguration.yaml: {sentence}")


def test_a_complaint_names_the_file_that_was_read():
    with pytest.raises(ConfigurationError, match=r"^/etc/mine\.yaml: line 1: "):
        Configured("scheduler: [", "/etc/mine.yaml")
    configured = Configured("", "/etc/mine.yaml")
    assert not configured.offer("scheduler: [")
    assert configured.refusal.startswith("/etc/mine.yaml: line 1: ")


def test_the_last_good_configuration_stays_in_use():
    configured = Configured(KTHENA)
    good = configured.current
    assert not configured.offer("scheduler: {policy: best}")
    assert configured.current is good
    assert configured.refusal.endswith("the configuration before it stays in use")
    assert not configured.offer(KTHENA)
    assert configured.refusal == ""
    assert configured.offer("scheduler: {policy: llm-d}")
    assert configured.current.recipe is RECIPES["llm-d"]


def test_pools_change_their_policy_while_they_run():
    from serving.router.poolkit import no_dice, pool_of, question

    pool = pool_of(2)
    pool.charge(pool.look(question("a"), 0.0), pool.members[0])
    RECIPES["soonest"].apply(pool)
    assert pool.look(question("a"), 0.0).matched == [128, 0]
    RECIPES["kthena"].apply(pool)
    assert pool.look(question("a"), 0.0).matched == [0, 0]
    assert isinstance(pool.policy, Chain)
    assert isinstance(RECIPES["llm-d"].pool("p", pool.fleet, no_dice).policy, Chain)


def test_tenants_have_budgets_of_their_own() -> None:
    read = read_configuration(
        'tenants:\n- {user: ann, inputTokensPerUnit: 1000, unit: minute}\n- {user: "*", requestsPerUnit: 2}\n'
    )
    assert (read.tenants["ann"].input_tokens, read.tenants["ann"].period_s) == (1000, 60.0)
    assert read.tenants["*"].requests == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tenants:\n- ann\n", "an entry of tenants is {user"),
        ("tenants:\n- {user: ann}\n", "line 1: tenants entry 1: limits nothing"),
        ("tenants:\n- {user: ann, requestsPerUnit: 1, unit: []}\n", 'unit "[]" is none of second'),
        ("tenants:\n- {user: ann, requestsPerUnit: -1}\n", 'requestsPerUnit "-1" must be a whole number of at least 1'),
    ],
)
def test_a_tenant_that_cannot_be_is_told_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_configuration(text)
    assert sentence in str(error.value)
