"""Match conditions of webhooks: CEL over the object, what it was, and the request; a webhook whose conditions do not all hold is not asked. Pure.

One that is false decides, whatever the others say; where none is, one that cannot be evaluated is a refusal, or, if the webhook
may fail, no question. `authorizer` is not known here: who writes such a condition is told so when the configuration is written.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from hekla.api.meta import Document
from hekla.apiserver import cel_library
from hekla.apiserver.admission import AdmissionRequest
from hekla.apiserver.cel_engine import cel
from hekla.apiserver.cel_rules import (
    FAILURES,
    MOST_STEPS,
    OUT_OF_BUDGET,
    RuleError,
    compile_text,
    go_words,
    nested_loops,
)
from hekla.apiserver.fielderrors import FieldError, duplicate, invalid, required, too_many
from hekla.apiserver.status import forbidden
from hekla.apiserver.validation import names
from hekla.apiserver.webhook_calls import Webhook, review_of

VARIABLES: Final = frozenset({"object", "oldObject", "request"})
MOST_CONDITIONS: Final = 64


def is_meant(webhook: Webhook, request: AdmissionRequest) -> bool:
    """Whether a webhook that is concerned is to be asked; StatusError where that cannot be told and it must be."""
    expressions = [one["expression"] for one in webhook.spec.get("matchConditions") or ()]
    if not expressions:
        return True
    values = _values(request)
    troubles: list[str] = []
    for expression in expressions:
        try:
            if not _holds(expression, values):
                return False
        except FAILURES as error:
            troubles.append(f"expression '{expression}' resulted in error: {go_words(error)}")
    if not troubles:
        return True
    if webhook.may_fail:
        return False
    kind = request.kind
    said = troubles[0] if len(troubles) == 1 else f"[{', '.join(troubles)}]"
    raise forbidden(kind.plural, kind.group, request.name, said)


def check_conditions(conditions: Sequence[Document], path: str) -> list[FieldError]:
    """What is wrong with the conditions of a webhook that is written."""
    if len(conditions) > MOST_CONDITIONS:
        return [too_many(path, len(conditions), MOST_CONDITIONS)]
    errors, seen = list[FieldError](), set[str]()
    for index, one in enumerate(conditions):
        where, name, expression = f"{path}[{index}]", one.get("name", ""), one.get("expression", "").strip()
        errors += _check_expression(expression, f"{where}.expression")
        if not name:
            errors.append(required(f"{where}.name", ""))
        elif name in seen:
            errors.append(duplicate(f"{where}.name", name))
        else:
            errors += [invalid(f"{where}.name", name, said) for said in names.qualified_name(name)]
        seen.add(name)
    return errors


def _check_expression(expression: str, path: str) -> list[FieldError]:
    if not expression:
        return [required(path, "")]
    try:
        compile_text(expression, VARIABLES)
    except RuleError as error:
        return [invalid(path, expression, f"compilation failed: {error}")]
    return []


def _values(request: AdmissionRequest) -> Document:
    asked = review_of(request, "")["request"]
    return {"object": asked.pop("object"), "oldObject": asked.pop("oldObject"), "request": asked}


def _holds(expression: str, values: Document) -> bool:
    program = compile_text(expression, VARIABLES)
    if (loops := nested_loops(expression)) and _longest(values) ** loops > MOST_STEPS:
        raise ValueError(OUT_OF_BUDGET)
    context, variables = _environment()
    variables.update(values)
    try:
        held = program.execute(context)
    finally:
        variables.clear()
    if not isinstance(held, bool):
        raise TypeError("must evaluate to bool")
    return held


@cache
def _environment() -> tuple["cel.Context", Document]:
    """An environment, and what its variables are in the condition that is being evaluated."""
    context, variables = cel_library.new_context(), dict[str, Any]()
    for name in VARIABLES:
        context.add_variable(name, None)
    context.set_variable_resolver(variables.get)
    return context, variables


def _longest(value: Any) -> int:
    """The length of the longest list or map in a document: what loops go over."""
    inner: Sequence[Any] = ()
    if isinstance(value, dict):
        inner = tuple(value.values())
    elif isinstance(value, list):
        inner = value
    else:
        return 0
    return max(len(inner), max(map(_longest, inner), default=0))
