"""What is wrong with `metadata`: names, labels, annotations, owners, finalizers, and what may never change."""

from collections.abc import Sequence
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import Cause, FieldError, forbidden_field, invalid, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.names import NameCheck

MOST_ANNOTATION_BYTES = 256 * 1024
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_STANDARD_FINALIZERS = {"kubernetes", "foregroundDeletion", "orphan"}


def check_metadata(
    metadata: Document, *, is_namespaced: bool, name_check: NameCheck, path: str = "metadata", is_custom: bool = False
) -> list[FieldError]:
    """Everything about the metadata of one object; a custom one's finalizers need no group before their names."""
    errors = _check_names(metadata, name_check, path)
    namespace = metadata.get("namespace", "")
    if is_namespaced:
        if not namespace:
            errors.append(required(f"{path}.namespace"))
        else:
            errors += [invalid(f"{path}.namespace", namespace, said) for said in names.dns_label(namespace)]
    elif namespace:
        errors.append(forbidden_field(f"{path}.namespace", "not allowed on this type"))
    if metadata.get("labels"):
        errors += check_labels(metadata["labels"], f"{path}.labels")
    if metadata.get("annotations"):
        errors += check_annotations(metadata["annotations"], f"{path}.annotations")
    if metadata.get("ownerReferences"):
        errors += _check_owners(metadata["ownerReferences"], f"{path}.ownerReferences")
    if metadata.get("finalizers"):
        errors += _check_finalizers(metadata["finalizers"], f"{path}.finalizers", is_custom=is_custom)
    return errors


def check_metadata_update(new: Document, old: Document, path: str = "metadata") -> list[FieldError]:
    """What may not change once an object exists."""
    errors = []
    for field in _IMMUTABLE:
        if new.get(field) != old.get(field):
            shown: Any = new.get(field, "" if field in ("name", "namespace", "uid") else None)
            errors.append(invalid(f"{path}.{field}", shown, "field is immutable"))
    if old.get("deletionTimestamp"):
        added = sorted(set(new.get("finalizers", ())) - set(old.get("finalizers", ())))
        if added:
            errors.append(
                forbidden_field(
                    f"{path}.finalizers",
                    f"no new finalizers can be added if the object is being deleted, found new finalizers {_go_strings(added)}",
                )
            )
    return errors


def check_labels(labels: dict[str, str], path: str) -> list[FieldError]:
    """Keys and values of labels."""
    errors = []
    for key in sorted(labels):
        errors += [invalid(path, key, said) for said in names.label_key(key)]
        errors += [invalid(path, labels[key], said) for said in names.label_value(labels[key])]
    return errors


def check_annotations(annotations: dict[str, str], path: str) -> list[FieldError]:
    """Keys of annotations, and how much they hold together."""
    errors = []
    for key in sorted(annotations):
        errors += [invalid(path, key, said) for said in names.qualified_name(key.lower())]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MOST_ANNOTATION_BYTES:
        errors.append(FieldError(Cause.TOO_LONG, path, f"Too long: may not be more than {MOST_ANNOTATION_BYTES} bytes"))
    return errors


def _check_names(metadata: Document, name_check: NameCheck, path: str) -> list[FieldError]:
    errors = []
    prefix, name = metadata.get("generateName", ""), metadata.get("name", "")
    if prefix:
        errors += [invalid(f"{path}.generateName", prefix, said) for said in name_check(prefix, True)]
    if name:
        errors += [invalid(f"{path}.name", name, said) for said in name_check(name, False)]
    else:
        errors.append(required(f"{path}.name", "name or generateName is required"))
    return errors


def _check_owners(owners: Sequence[Document], path: str) -> list[FieldError]:
    errors, controller = [], ""
    for owner in owners:
        errors += _check_owner(owner, path)  # Kubernetes leaves out which of them
        if owner.get("controller"):
            named = f"{owner.get('kind')}/{owner.get('name')}"
            if controller:
                errors.append(
                    invalid(
                        path,
                        list(owners),
                        f'Only one reference can have Controller set to true. Found "true" in references for {controller} and {named}',
                    )
                )
            controller = controller or named
    return errors


def _check_owner(owner: Document, path: str) -> list[FieldError]:
    said = owner.get("apiVersion", "")
    group, _, version = said.rpartition("/")
    errors = [] if version and "/" not in group else [invalid(f"{path}.apiVersion", said, "version must not be empty")]
    errors += [
        invalid(f"{path}.{field}", "", "must not be empty") for field in ("kind", "name", "uid") if not owner.get(field)
    ]
    if said == "v1" and owner.get("kind") == "Event":
        errors.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
    return errors


def _check_finalizers(finalizers: Sequence[str], path: str, *, is_custom: bool) -> list[FieldError]:
    errors = []
    for index, finalizer in enumerate(finalizers):
        where = f"{path}[{index}]"
        errors += [invalid(path, finalizer, said) for said in names.qualified_name(finalizer)]
        if not is_custom and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            errors.append(
                invalid(where, finalizer, "name is neither a standard finalizer name nor is it fully qualified")
            )
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        errors.append(invalid(path, list(finalizers), "finalizer orphan and foregroundDeletion cannot be both set"))
    return errors


def _go_strings(values: Sequence[str]) -> str:
    return "[]string{" + ", ".join(f'"{value}"' for value in values) + "}"
