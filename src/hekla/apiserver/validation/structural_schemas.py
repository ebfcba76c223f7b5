"""What is wrong with the schema of a custom resource: is it structural, do its defaults, patterns and rules hold."""

from dataclasses import replace
from typing import Any

from hekla.api.meta import Document
from hekla.api.schema import from_openapi
from hekla.apiserver import cel_rules, schema_validation, structural
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required

MOST_DEPTH = 100
"""How deep schemas may be nested."""

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_FORBIDDEN = {
    "$ref": "$ref is not supported",
    "definitions": "definitions is not supported",
    "dependencies": "dependencies is not supported",
    "id": "id is not supported",
    "patternProperties": "patternProperties is not supported",
    "additionalItems": "additionalItems is not supported",
    "$schema": "$schema is not supported",
}
_NOT_IN_JUNCTORS = ("additionalProperties", "default", "description", "nullable", "title", "type")
_JUNCTORS = ("allOf", "anyOf", "oneOf")
_QUADRATIC = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
_ROOT_METADATA = "must not specify anything other than name and generateName, but metadata is implicitly specified"
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def check_schema(schema: Document, path: str) -> list[FieldError]:
    """The schema of one version."""
    errors = _check_root(schema, path)
    errors += _check_node(schema, path, "at the root", depth=0, is_correlatable=True)
    if not errors:
        errors += _check_defaults(schema, path)
    return errors


def _check_root(schema: Document, path: str) -> list[FieldError]:
    errors = []
    if schema.get("type") and schema["type"] != "object":
        errors.append(invalid(f"{path}.type", schema["type"], "must be object at the root"))
    metadata = schema.get("properties", {}).get("metadata")
    if metadata is not None:
        said = metadata.get("properties", {})
        if (
            any(key not in ("type", "properties", "description") for key in metadata)
            or not {"name", "generateName"} >= said.keys()
        ):
            errors.append(forbidden_field(f"{path}.properties[metadata]", _ROOT_METADATA))
    if schema.get("nullable"):
        errors.append(forbidden_field(f"{path}.nullable", "nullable cannot be true at the root"))
    return errors


def _check_node(schema: Document, path: str, where: str, *, depth: int, is_correlatable: bool) -> list[FieldError]:
    if depth > MOST_DEPTH:
        return [invalid(path, "", f"schemas may be nested at most {MOST_DEPTH} deep")]
    errors = _check_type(schema, path, where) + _check_keywords(schema, path)
    errors += _check_list(schema, path) + _check_rules(schema, path, is_correlatable=is_correlatable)
    for name, child in schema.get("properties", {}).items():
        errors += _check_node(
            child,
            f"{path}.properties[{name}]",
            "for specified object fields",
            depth=depth + 1,
            is_correlatable=is_correlatable,
        )
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        errors += _check_node(
            values,
            f"{path}.additionalProperties",
            "for specified object fields",
            depth=depth + 1,
            is_correlatable=is_correlatable,
        )
    items = schema.get("items")
    if isinstance(items, dict):
        is_map = schema.get("x-kubernetes-list-type") == "map"
        errors += _check_node(
            items,
            f"{path}.items",
            "for specified array items",
            depth=depth + 1,
            is_correlatable=is_correlatable and is_map,
        )
    return errors


def _check_type(schema: Document, path: str, where: str) -> list[FieldError]:
    kind, is_either = schema.get("type", ""), schema.get("x-kubernetes-int-or-string")
    errors = []
    if is_either and kind:
        errors.append(forbidden_field(f"{path}.type", "must be empty if x-kubernetes-int-or-string is true"))
    elif not kind and not is_either and not schema.get("x-kubernetes-preserve-unknown-fields"):
        errors.append(required(f"{path}.type", f"must not be empty {where}"))
    elif kind and kind not in _TYPES:
        errors.append(not_supported(f"{path}.type", kind, _TYPES))
    if kind == "array" and not isinstance(schema.get("items"), dict):
        errors.append(required(f"{path}.items", "must be specified"))
    if schema.get("x-kubernetes-embedded-resource") and kind != "object":
        errors.append(invalid(f"{path}.type", kind, "must be object if x-kubernetes-embedded-resource is true"))
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        errors.append(invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined"))
    return errors


def _check_keywords(schema: Document, path: str) -> list[FieldError]:
    errors = [forbidden_field(f"{path}.{key}", said) for key, said in _FORBIDDEN.items() if key in schema]
    if schema.get("uniqueItems"):
        errors.append(forbidden_field(f"{path}.uniqueItems", _QUADRATIC))
    values = schema.get("additionalProperties")
    if values is False:
        errors.append(forbidden_field(f"{path}.additionalProperties", "additionalProperties cannot be set to false"))
    if values is not None and schema.get("properties"):
        errors.append(
            forbidden_field(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
        )
    if isinstance(schema.get("items"), list):
        errors.append(forbidden_field(f"{path}.items", "items must be a schema object and not an array"))
    errors += _check_pattern(schema, path)
    for key in _JUNCTORS:
        for index, child in enumerate(schema.get(key, ())):
            if not (schema.get("x-kubernetes-int-or-string") and _says_int_or_string(schema, key)):
                errors += _check_junctor(child, f"{path}.{key}[{index}]", 0)
    if isinstance(schema.get("not"), dict):
        errors += _check_junctor(schema["not"], f"{path}.not", 0)
    return errors


def _says_int_or_string(schema: Document, key: str) -> bool:
    if key == "anyOf":
        return bool(schema[key] == _INT_OR_STRING)
    return key == "allOf" and bool(schema[key]) and schema[key][0].get("anyOf") == _INT_OR_STRING


def _check_junctor(schema: Document, path: str, depth: int) -> list[FieldError]:
    """Inside allOf, anyOf, oneOf and not a schema only checks; what it makes of a value is said outside."""
    if depth > MOST_DEPTH:
        return [invalid(path, "", f"schemas may be nested at most {MOST_DEPTH} deep")]
    errors = [
        forbidden_field(f"{path}.{key}", "must be empty to be structural") for key in _NOT_IN_JUNCTORS if key in schema
    ]
    errors += _check_pattern(schema, path)
    for name, child in schema.get("properties", {}).items():
        errors += _check_junctor(child, f"{path}.properties[{name}]", depth + 1)
    if isinstance(schema.get("items"), dict):
        errors += _check_junctor(schema["items"], f"{path}.items", depth + 1)
    for key in _JUNCTORS:
        for index, child in enumerate(schema.get(key, ())):
            errors += _check_junctor(child, f"{path}.{key}[{index}]", depth + 1)
    return errors


def _check_pattern(schema: Document, path: str) -> list[FieldError]:
    pattern = schema.get("pattern")
    if not pattern:
        return []
    why = cel_rules.pattern_error(pattern)
    return [invalid(f"{path}.pattern", pattern, f"must be a valid regular expression, but isn't: {why}")] if why else []


def _check_list(schema: Document, path: str) -> list[FieldError]:
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []
    if kind is None:
        return (
            [required(f"{path}.x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty")]
            if keys
            else []
        )
    if schema.get("type") != "array":
        return [invalid(f"{path}.type", schema.get("type", ""), "must be array if x-kubernetes-list-type is specified")]
    if kind not in ("atomic", "map", "set"):
        return [not_supported(f"{path}.x-kubernetes-list-type", kind, ("atomic", "map", "set"))]
    if kind != "map":
        return (
            [invalid(f"{path}.x-kubernetes-list-map-keys", keys, "must be empty if x-kubernetes-list-type is not map")]
            if keys
            else []
        )
    return _check_map_keys(schema, keys, path)


def _check_map_keys(schema: Document, keys: list[str], path: str) -> list[FieldError]:
    if not keys:
        return [required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")]
    errors = []
    items = schema.get("items")
    items = items if isinstance(items, dict) else {}
    properties = items.get("properties", {})
    if items.get("type") != "object":
        errors.append(
            invalid(
                f"{path}.items.type",
                items.get("type", ""),
                "must be object if parent array's x-kubernetes-list-type is map",
            )
        )
    if any(key not in properties for key in keys):
        errors.append(
            invalid(f"{path}.x-kubernetes-list-map-keys", keys, "entries must all be names of item properties")
        )
    if len(set(keys)) != len(keys):
        errors.append(invalid(f"{path}.x-kubernetes-list-map-keys", keys, "must not contain duplicate entries"))
    for key in keys:
        child = properties.get(key, {})
        if child.get("type") in ("array", "object"):
            errors.append(
                invalid(
                    f"{path}.items.properties[{key}].type",
                    child["type"],
                    "must be a scalar type if parent array's x-kubernetes-list-type is map",
                )
            )
        if key in properties and key not in items.get("required", ()) and "default" not in child:
            said = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            errors.append(required(f"{path}.items.properties[{key}].default", said))
    return errors


def _check_rules(schema: Document, path: str, *, is_correlatable: bool) -> list[FieldError]:
    errors = []
    for index, rule in enumerate(schema.get("x-kubernetes-validations", ())):
        where = f"{path}.x-kubernetes-validations[{index}]"
        if not str(rule.get("rule", "")).strip():
            errors.append(required(f"{where}.rule", "rule is not specified"))
            continue
        if "\n" in rule.get("message", "").strip():
            errors.append(invalid(f"{where}.message", rule["message"], "message must not contain line breaks"))
        try:
            compiled = cel_rules.compile_rule(rule)
        except cel_rules.RuleError as error:
            errors.append(invalid(f"{where}.rule", rule, f"compilation failed: {error}"))
            continue
        if compiled.is_transition and not is_correlatable:
            said = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {path}"
            errors.append(invalid(f"{where}.rule", rule["rule"], said))
    return errors


def _check_defaults(schema: Document, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    _find_defaults(schema, path, errors, is_root=True)
    return errors


def _find_defaults(schema: Document, path: str, errors: list[FieldError], *, is_root: bool) -> None:
    if "default" in schema:
        if is_root:
            errors.append(forbidden_field(f"{path}.default", "must not be set at the root"))
        else:
            errors += _check_default(schema["default"], schema, f"{path}.default")
    for name, child in schema.get("properties", {}).items():
        _find_defaults(child, f"{path}.properties[{name}]", errors, is_root=False)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            _find_defaults(schema[key], f"{path}.{key}", errors, is_root=False)


def _check_default(value: Any, schema: Document, path: str) -> list[FieldError]:
    node = structural.compiled(from_openapi(schema))
    errors: list[FieldError] = []
    unknown: list[str] = []
    structural.prune(value, node, "", unknown)
    if unknown:
        errors.append(invalid(path, value, "must not have unknown fields"))
    schema_validation.check_values(value, node, path, errors)
    # the sentence speaks of the value as of a body of its own, whose path is empty
    errors = [replace(error, message=error.message.replace(f"{path} in body", " in body")) for error in errors]
    schema_validation.check_keys(value, node, path, errors)
    if not errors:
        schema_validation.check_rules(value, None, False, node, path, errors)
    return errors
