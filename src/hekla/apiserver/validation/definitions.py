"""What is wrong with a CustomResourceDefinition: names, versions, subresources; `structural_schemas.py` has its schemas."""

import re

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.structural_schemas import check_schema

_APPROVAL = "api-approved.kubernetes.io"
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_ONE_STORAGE = "must have exactly one version marked as storage version"
_PRESERVE = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
_IMMUTABLE = "field is immutable"


def check_definition(definition: Document) -> list[FieldError]:
    """A whole definition."""
    spec, name = definition.get("spec", {}), definition["metadata"].get("name", "")
    said = spec.get("names", {})
    errors = []
    if name != f"{said.get('plural', '')}.{spec.get('group', '')}":
        errors.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    errors += _check_group(spec.get("group", "")) + _check_approval(definition)
    if not spec.get("scope"):
        errors.append(required("spec.scope"))
    elif spec["scope"] not in ("Cluster", "Namespaced"):
        errors.append(not_supported("spec.scope", spec["scope"], ("Cluster", "Namespaced")))
    if spec.get("preserveUnknownFields"):
        errors.append(invalid("spec.preserveUnknownFields", True, _PRESERVE))
    errors += _check_versions(spec.get("versions") or []) + _check_names(said)
    return errors + _check_conversion(spec.get("conversion", {}))


def _check_group(group: str) -> list[FieldError]:
    if not group:
        return [required("spec.group")]
    errors = [invalid("spec.group", group, said) for said in names.dns_subdomain(group)]
    if not errors and "." not in group:
        errors.append(invalid("spec.group", group, "should be a domain with at least one dot"))
    return errors


def _check_approval(definition: Document) -> list[FieldError]:
    group = definition.get("spec", {}).get("group", "")
    is_protected = group in ("k8s.io", "kubernetes.io") or group.endswith((".k8s.io", ".kubernetes.io"))
    if is_protected and not definition["metadata"].get("annotations", {}).get(_APPROVAL):
        said = f'protected groups must have approval annotation "{_APPROVAL}", see https://github.com/kubernetes/enhancements/pull/1111'
        return [required(f"metadata.annotations[{_APPROVAL}]", said)]
    return []


def _check_versions(versions: list[Document]) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, version in enumerate(versions):
        where, name = f"spec.versions[{index}]", version.get("name", "")
        errors += [invalid(f"{where}.name", name, said) for said in names.dns_label_1035(name)]
        if name in seen:
            errors.append(
                invalid("spec.versions", [one.get("name", "") for one in versions], "must contain unique version names")
            )
        seen.add(name)
        # Kubernetes moves what all versions have in common up, and speaks of the place it then has
        schema_path = "spec.validation.openAPIV3Schema" if len(versions) == 1 else f"{where}.schema.openAPIV3Schema"
        errors += _check_version(version, where, schema_path)
    if sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(invalid("spec.versions", [one.get("name", "") for one in versions], _ONE_STORAGE))
    return errors


def _check_version(version: Document, path: str, schema_path: str) -> list[FieldError]:
    schema = version.get("schema", {}).get("openAPIV3Schema")
    if schema is None:
        errors = [required(f"{path}.schema.openAPIV3Schema", "schemas are required")]
    else:
        errors = check_schema(schema, schema_path)
    scale = version.get("subresources", {}).get("scale")
    if scale is not None:
        errors += _check_scale(scale, f"{path}.subresources.scale")
    for index, column in enumerate(version.get("additionalPrinterColumns", ())):
        errors += _check_column(column, f"{path}.additionalPrinterColumns[{index}]")
    for index, field in enumerate(version.get("selectableFields", ())):
        errors += _check_selectable(field, schema or {}, f"{path}.selectableFields[{index}]")
    return errors


def _check_scale(scale: Document, path: str) -> list[FieldError]:
    errors = []
    for key, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        value = scale.get(key, "")
        if not value:
            errors.append(required(f"{path}.{key}"))
        elif not value.startswith(f"{root}."):
            errors.append(invalid(f"{path}.{key}", value, f"should be a json path under {root}"))
    value = scale.get("labelSelectorPath")
    if value and not value.startswith((".spec.", ".status.")):
        errors.append(
            invalid(f"{path}.labelSelectorPath", value, "should be a json path under either .spec or .status")
        )
    return errors


def _check_column(column: Document, path: str) -> list[FieldError]:
    errors = [required(f"{path}.{key}") for key in ("name", "jsonPath") if not column.get(key)]
    kind = column.get("type", "")
    if not kind:
        errors.append(required(f"{path}.type", "must be one of boolean,date,integer,number,string"))
    elif kind not in _COLUMN_TYPES:
        errors.append(invalid(f"{path}.type", kind, "must be one of boolean,date,integer,number,string"))
    return errors


def _check_selectable(field: Document, schema: Document, path: str) -> list[FieldError]:
    wanted = field.get("jsonPath", "")
    if not wanted:
        return [required(f"{path}.jsonPath", "must not be empty")]
    if not re.fullmatch(r"(\.[A-Za-z_][\w-]*)+", wanted, re.ASCII):
        return [
            invalid(
                f"{path}.jsonPath", wanted, "is an invalid path: does not appear to be a simple path of field names"
            )
        ]
    node = schema
    for part in wanted.strip(".").split("."):
        node = node.get("properties", {}).get(part)
        if node is None:
            return [invalid(f"{path}.jsonPath", wanted, "is an invalid path: does not refer to a valid field")]
    if node.get("type") not in ("string", "integer", "boolean"):
        said = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."
        return [invalid(f"{path}.jsonPath", wanted, said)]
    return []


def _check_names(said: Document) -> list[FieldError]:
    errors = []
    for key in ("plural", "singular", "kind", "listKind"):
        value = said.get(key, "")
        if not value:
            errors += [required(f"spec.names.{key}")] if key in ("plural", "kind", "listKind") else []
        elif key in ("kind", "listKind"):
            words = names.dns_label_1035(value.lower())
            errors += [
                invalid(f"spec.names.{key}", value, f"may have mixed case, but should otherwise match: {one}")
                for one in words
            ]
        else:
            errors += [invalid(f"spec.names.{key}", value, one) for one in names.dns_label_1035(value)]
    for key in ("shortNames", "categories"):
        for index, value in enumerate(said.get(key, ())):
            errors += [invalid(f"spec.names.{key}[{index}]", value, one) for one in names.dns_label_1035(value)]
    if said.get("kind") and said.get("kind") == said.get("listKind"):
        errors.append(invalid("spec.names.listKind", said["kind"], "kind and listKind may not be the same"))
    return errors


def _check_conversion(conversion: Document) -> list[FieldError]:
    strategy = conversion.get("strategy", "")
    if strategy not in ("None", "Webhook"):
        return [not_supported("spec.conversion.strategy", strategy, ("None", "Webhook"))]
    if strategy == "Webhook" and not conversion.get("webhook", {}).get("clientConfig"):
        return [required("spec.conversion.webhook.clientConfig", "required when strategy is set to Webhook")]
    return []


def check_definition_update(new: Document, old: Document) -> list[FieldError]:
    """A definition keeps its group, scope and kind, and every version that objects are stored in."""
    wanted, before = new["spec"], old["spec"]
    errors = []
    for key in ("group", "scope"):
        if wanted.get(key) != before.get(key):
            errors.append(invalid(f"spec.{key}", wanted.get(key, ""), _IMMUTABLE))
    for key in ("plural", "kind"):
        value = wanted.get("names", {}).get(key, "")
        if value != before.get("names", {}).get(key, ""):
            errors.append(invalid(f"spec.names.{key}", value, _IMMUTABLE))
    known = {version.get("name") for version in wanted.get("versions") or ()}
    for index, name in enumerate(old.get("status", {}).get("storedVersions") or ()):
        if name not in known:
            said = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a"
                f" storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            )
            errors.append(invalid(f"status.storedVersions[{index}]", name, said))
    return errors
