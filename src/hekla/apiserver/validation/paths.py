"""Which paths inside a volume or on a host are allowed."""

from hekla.apiserver.fielderrors import FieldError, invalid


def check_relative(text: str, path: str) -> list[FieldError]:
    """A path below a volume."""
    errors = [invalid(path, text, "must be a relative path")] if text.startswith("/") else []
    return errors + check_no_backsteps(text, path)


def check_no_backsteps(text: str, path: str) -> list[FieldError]:
    """No way out of the directory."""
    return [invalid(path, text, "must not contain '..'")] if ".." in text.split("/") else []


def check_unreserved(text: str, path: str) -> list[FieldError]:
    """A path below a volume that the node's own files, whose names start with two dots, leave free."""
    errors = check_relative(text, path)
    if text.startswith("..") and not text.startswith("../"):
        errors.append(invalid(path, text, "must not start with '..'"))
    return errors
