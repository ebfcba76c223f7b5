"""Where a sandbox may connect: what its rules say, and what no rule can say."""

from ipaddress import ip_address

import pytest

from hekla.api.agents.egress import RulesError, canonical, rules_of
from hekla.node.egress.rules import judge, judge_address

RULES = rules_of("api.example.com, *.files.example.com:8443, 93.184.216.34:80, bücher.example")


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("api.example.com", 443),
        ("api.example.com", 80),
        ("API.Example.com.", 443),
        ("eu.files.example.com", 8443),
        ("a.b.files.example.com", 8443),
        ("93.184.216.34", 80),
        ("bücher.example", 443),
        ("xn--bcher-kva.example", 443),
    ],
)
def test_what_a_rule_names_is_allowed_however_it_is_spelled(host, port):
    assert judge(RULES, host, port).is_allowed


@pytest.mark.parametrize(
    ("host", "port", "code"),
    [
        ("api.example.com", 22, "not-allowed"),
        ("example.com", 443, "not-allowed"),
        ("files.example.com", 8443, "not-allowed"),
        ("evilfiles.example.com", 8443, "not-allowed"),
        ("api.example.com.evil.org", 443, "not-allowed"),
        ("93.184.216.35", 80, "not-allowed"),
        ("0x5db8d822", 80, "bad-host"),
        ("1572395042", 80, "bad-host"),
        ("0135.0270.0330.042", 80, "bad-host"),
        ("93.184.55330", 80, "bad-host"),
        ("api.example.com\r\nx", 443, "bad-host"),
        ("api.example.com%00.evil.org", 443, "bad-host"),
        ("user@api.example.com", 443, "bad-host"),
        ("", 443, "bad-host"),
        ("api.example.com" + "." * 30_000, 443, "bad-host"),
    ],
)
def test_what_no_rule_names_is_refused_with_a_reason(host, port, code):
    assert judge(RULES, host, port).code == code


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1",
     "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:a00:1::", "2002:7f00:1::", "2001:db8::1",
     "168.63.129.16", "::ffff:168.63.129.16", "192.0.0.192", "192.0.0.8", "192.88.99.1", "fec0::1", "3fff::1"],
)  # fmt: skip
def test_no_rule_opens_an_address_that_is_not_on_the_internet(address):
    verdict = judge_address(ip_address(address))
    assert verdict.code == "private-address"


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"])
def test_addresses_of_the_internet_may_be_connected_to(address):
    assert judge_address(ip_address(address)).is_allowed


@pytest.mark.parametrize(
    ("text", "words"),
    [("example.com:0", "port"), ("example.com:x", "port"), ("exa mple", "names no host"), ("*.", "names no host")],
)
def test_a_rule_that_makes_no_sense_is_named(text, words):
    with pytest.raises(RulesError, match=words):
        rules_of(text)


def test_everything_is_a_rule_and_nothing_is_none():
    assert judge(rules_of("*"), "any.example", 443).is_allowed
    assert not judge(rules_of("*:443"), "any.example", 8080).is_allowed
    assert rules_of("") == ()
    assert canonical("[2606:4700::1111]") == "2606:4700::1111"
