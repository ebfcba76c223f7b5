from typing import Any

import pytest

from hekla.apiserver.cel_rules import (
    MOST_STEPS,
    OUT_OF_BUDGET,
    RuleError,
    compile_rule,
    matches,
    pattern_error,
    run_rule,
)

GONE = object()


def said(rule: str, value: Any, old: Any = GONE, size: int = 10, **more: Any) -> str:
    error = run_rule(
        compile_rule({"rule": rule, **more}), value, None if old is GONE else old, old is not GONE, "spec", size
    )
    return f"{error.field}: {error.message}" if error else ""


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self.mode != 'big' || self.size > 10", {"mode": "small", "size": 1}),
        ("[1, 2, 2].isSorted() && self.l.sum() == 6 && self.l.max() == 3", {"l": [1, 2, 3]}),
        ("self.l.indexOf('b') == 1 && 'abcb'.lastIndexOf('b') == 3", {"l": ["a", "b"]}),
        ("'abc 123'.find('[0-9]+') == '123' && '1 2'.findAll('[0-9]').size() == 2", {}),
        ("quantity('1Gi') == quantity('1024Mi') && quantity('500m').isLessThan(quantity('1'))", {}),
        ("quantity('1').add(quantity('2')).asInteger() == 3 && !isQuantity('x')", {}),
        ("url('https://a:8/b?c=d').getHost() == 'a:8' && url('https://a:8/b').getPort() == '8' && !isURL('::')", {}),
        ("isIP('10.0.0.1') && ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.1.1')", {}),
        ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.0.0.0/8').prefixLength() == 8", {}),
        ("'%s has %d'.format(['a', 3]) == 'a has 3'", {}),
        ("self.?a.b.orValue('x') == 'x' && !self[?'a'].hasValue()", {}),
        ("'a,b'.split(',') == ['a', 'b'] && 'ABC'.lowerAscii() == 'abc' && math.greatest(1, 2) == 2", {}),
        ("type(self.a) == string && self.a.startsWith('x')", {"a": "xy"}),
        ("!format.dns1123Label().validate('ok').hasValue()", {}),
    ],
)
def test_kubernetes_functions_are_there(rule: str, value: Any):
    assert said(rule, value) == ""


def test_a_failure_is_told_with_its_message_reason_and_place():
    assert said("self > 1", 0) == "spec: Invalid value: failed rule: self > 1"
    assert said("self > 1", 0, message="too small") == "spec: Invalid value: too small"
    assert said("self > 1", 0, message="x", messageExpression="'got ' + string(self)") == "spec: Invalid value: got 0"
    assert (
        said("self.a > 1", {"a": 0}, message="x", fieldPath=".a", reason="FieldValueForbidden")
        == "spec.a: Forbidden: x"
    )
    assert said("self.a > 1", {"a": 0}, reason="FieldValueDuplicate") == "spec: Duplicate value"
    assert said("self.b > 1", {"a": 0}, message="m") == "spec: Invalid value: no such key: b evaluating rule: m"


def test_a_rule_on_the_old_value_runs_on_changes_only():
    assert said("self >= oldSelf", 1) == ""
    assert said("self >= oldSelf", 1, 2) == "spec: Invalid value: failed rule: self >= oldSelf"
    assert said("!oldSelf.hasValue() || oldSelf.value() <= self", 1, optionalOldSelf=True) == ""
    assert said("!oldSelf.hasValue() || oldSelf.value() <= self", 1, 2, optionalOldSelf=True) != ""


@pytest.mark.parametrize("rule", ["self.", "nowhere == 1", "nofunction(self)", "self.nomethod()", "1 +", "x" * 9000])
def test_what_does_not_compile_is_refused(rule: str):
    with pytest.raises(RuleError):
        compile_rule({"rule": rule})


def test_a_rule_that_would_run_too_long_is_not_run():
    nested = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"
    assert OUT_OF_BUDGET in said(nested, [1], size=1000)
    assert MOST_STEPS < 1000**3
    assert said(nested, [1, 2], size=2) == ""


def test_patterns_are_searched_in_linear_time():
    assert not matches("(a+)+$", "a" * 5000 + "!")
    assert matches("b", "abc")
    assert pattern_error("(") != ""
