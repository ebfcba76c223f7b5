"""What is wrong with how a pod is named in the network and how it resolves names."""

import ipaddress

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, required, too_long
from hekla.apiserver.validation import names

_MOST_SERVERS, _MOST_SEARCHES, _LONGEST_SEARCH = 3, 32, 2048
_LONGEST_HOSTNAME = 64
NOT_AN_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def check_pod_network(spec: Document, path: str) -> list[FieldError]:
    """Resolver, host aliases, the name that overrides the host's."""
    errors = []
    if "dnsConfig" in spec or spec.get("dnsPolicy") == "None":
        errors += _check_dns(spec.get("dnsConfig"), spec.get("dnsPolicy", ""), f"{path}.dnsConfig")
    if "hostAliases" in spec:
        errors += _check_host_aliases(spec["hostAliases"], f"{path}.hostAliases")
    if "hostnameOverride" in spec:
        errors += _check_override(spec, f"{path}.hostnameOverride")
    return errors


def _check_dns(config: Document | None, policy: str, path: str) -> list[FieldError]:
    if policy == "None":
        if config is None:
            return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.get("nameservers"):
            said = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.nameservers", said)]
    config = config or {}
    servers, searches, errors = config.get("nameservers", []), config.get("searches", []), []
    if len(servers) > _MOST_SERVERS:
        said = f"must not have more than {_MOST_SERVERS} nameservers"
        errors.append(invalid(f"{path}.nameservers", servers, said))
    for index, server in enumerate(servers):
        if not is_ip(server):
            errors.append(invalid(f"{path}.nameservers[{index}]", server, NOT_AN_ADDRESS))
    errors += _check_searches(searches, f"{path}.searches")
    for index, option in enumerate(config.get("options", ())):
        if not option.get("name"):
            errors.append(required(f"{path}.options[{index}]", "must not be empty"))
    return errors


def _check_searches(searches: list[str], path: str) -> list[FieldError]:
    errors = []
    if len(searches) > _MOST_SEARCHES:
        errors.append(invalid(path, searches, f"must not have more than {_MOST_SEARCHES} search paths"))
    if len(" ".join(searches)) > _LONGEST_SEARCH:
        said = f"must not have more than {_LONGEST_SEARCH} characters (including spaces) in the search list"
        errors.append(invalid(path, searches, said))
    for index, search in enumerate(searches):
        name = search.removesuffix(".")
        if search != ".":
            said_of = names.dns_subdomain_with_underscore(name)
            errors += [invalid(f"{path}[{index}]", name, said) for said in said_of]
    return errors


def _check_host_aliases(aliases: list[Document], path: str) -> list[FieldError]:
    errors = []
    for index, alias in enumerate(aliases):
        where, address = f"{path}[{index}]", alias.get("ip", "")
        if not is_ip(address):
            errors.append(invalid(f"{where}.ip", address, NOT_AN_ADDRESS))
        for at, name in enumerate(alias.get("hostnames", ())):
            errors += [invalid(f"{where}.hostnames[{at}]", name, said) for said in names.dns_subdomain(name)]
    return errors


def _check_override(spec: Document, path: str) -> list[FieldError]:
    name = spec["hostnameOverride"]
    errors = [
        forbidden_field(path, f"may not be specified when {key} is true")
        for key in ("setHostnameAsFQDN", "hostNetwork")
        if spec.get(key)
    ]
    if len(name) > _LONGEST_HOSTNAME:
        errors.append(too_long(path, _LONGEST_HOSTNAME))
    return errors + [invalid(path, name, said) for said in names.dns_subdomain(name)]


def is_ip(text: str) -> bool:
    """Whether a text is an address; Go knows none with a zone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text
