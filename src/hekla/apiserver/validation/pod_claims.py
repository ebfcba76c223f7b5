"""What is wrong with the device claims of a pod, and with how its containers use them."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import Cause, FieldError, duplicate, invalid, required, shown
from hekla.apiserver.validation import names

_ONE = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
_NONE = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"


def check_pod_claims(claims: list[Document], path: str) -> list[FieldError]:
    """Names, each once, and one source each."""
    errors, seen = list[FieldError](), set[str]()
    for index, claim in enumerate(claims):
        where, name = f"{path}[{index}]", claim.get("name", "")
        if not name:
            errors.append(required(f"{where}.name"))
        elif name in seen:
            errors.append(duplicate(f"{where}.name", name))
        else:
            errors += [invalid(f"{where}.name", name, said) for said in names.dns_label(name)]
            seen.add(name)
        errors += _check_source(claim, where)
    return errors


def _check_source(claim: Document, path: str) -> list[FieldError]:
    of_claim, of_template = claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")
    errors = []
    if (of_claim is None) == (of_template is None):
        whole = {
            "Name": claim.get("name", ""),
            "ResourceClaimName": of_claim,
            "ResourceClaimTemplateName": of_template,
        }
        errors.append(invalid(path, whole, _NONE if of_claim is None else _ONE))
    for key in ("resourceClaimName", "resourceClaimTemplateName"):
        if key in claim:
            errors += [invalid(f"{path}.{key}", claim[key], said) for said in names.dns_subdomain(claim[key])]
    return errors


def check_claim_uses(uses: list[Document], known: list[str], path: str) -> list[FieldError]:
    """The claims that a container uses are its pod's, and each request of them is used once."""
    errors, seen = list[FieldError](), set[str]()
    for index, use in enumerate(uses):
        where, name, request = f"{path}[{index}]", use.get("name", ""), use.get("request", "")
        if not name:
            errors.append(required(where))
            continue
        key = f"{name}/{request}" if request else name
        if name in seen:
            errors.append(duplicate(where, name))
        else:
            errors += [invalid(f"{where}.request", request, said) for said in names.dns_label(request) if request]
            if key in seen or (not request and any(one.startswith(f"{name}/") for one in seen)):
                errors.append(duplicate(where, key))
            seen.add(key)
        if name not in known:
            listed = f": {', '.join(sorted(known))}" if known else " which is empty"
            said = f"Not found: {shown(name)}: must be one of the names in pod.spec.resourceClaims{listed}"
            errors.append(FieldError(Cause.NOT_FOUND, where, said))
    return errors
