"""CEL rules of custom resources (`x-kubernetes-validations`): compiled once a version, run with a bound on their cost.

`structural.py` finds the nodes that have rules; `cel_library.py` has the functions that rules may call.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from hekla.apiserver import cel_library
from hekla.apiserver.cel_engine import cel
from hekla.apiserver.fielderrors import Cause, FieldError

MOST_STEPS = 3_000_000
"""How many loop steps one rule may take by estimate: about a second."""

MOST_RULE_CHARS = 8_000
OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"
_LOOP = re.compile(r"\.(?:all|exists|exists_one|map|filter)\s*\(")
FAILURES = (
    ValueError,
    RuntimeError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    ZeroDivisionError,
    AttributeError,
)
"""What the package raises when an expression cannot be evaluated, and what our functions may."""

_REASONS = {
    "FieldValueInvalid": (Cause.INVALID, "Invalid value"),
    "FieldValueRequired": (Cause.REQUIRED, "Required value"),
    "FieldValueForbidden": (Cause.FORBIDDEN, "Forbidden"),
    "FieldValueDuplicate": (Cause.DUPLICATE, "Duplicate value"),
}


class RuleError(ValueError):
    """A rule that does not compile; the message is the reason, after Kubernetes' fashion."""


@dataclass(frozen=True)
class CompiledRule:
    """One rule, ready to run."""

    rule: str
    program: "cel.Program"
    loops: int
    """How deep its loops are nested."""

    is_transition: bool
    """Whether it looks at the old value, so that it only applies to changes."""

    optional_old_self: bool
    message: str
    message_program: "cel.Program | None"
    field_path: str
    reason: str

    def said(self) -> str:
        """What a failure is told with, when there is no message of its own."""
        return self.message or f"failed rule: {self.rule}"


def compile_rule(raw: Mapping[str, Any]) -> CompiledRule:
    """Compile a rule; raises RuleError."""
    text = str(raw.get("rule", "")).strip()
    program = compile_text(text)
    expression = raw.get("messageExpression")
    return CompiledRule(
        rule=text,
        program=program,
        loops=nested_loops(text),
        is_transition="oldSelf" in program.variables(),
        optional_old_self=bool(raw.get("optionalOldSelf")),
        message=str(raw.get("message", "")).strip(),
        message_program=compile_text(str(expression)) if expression else None,
        field_path=str(raw.get("fieldPath", "")),
        reason=str(raw.get("reason") or "FieldValueInvalid"),
    )


@lru_cache(maxsize=1024)
def compile_text(text: str, variables: frozenset[str] = frozenset({"self", "oldSelf"})) -> "cel.Program":
    """Compile an expression over these variables; raises RuleError."""
    if len(text) > MOST_RULE_CHARS:
        raise RuleError(f"the expression has {len(text)} characters, at most {MOST_RULE_CHARS} are compiled")
    try:
        program = cel.compile(cel_library.in_plain_syntax(text))
    except ValueError as error:
        said = str(error)
        raise RuleError(said[said.find("ERROR:") :] if "ERROR:" in said else said) from None
    unknown = sorted(set(program.functions()) - _known_functions())
    for name in [name for name in unknown if _is_name(name)]:
        raise RuleError(f"ERROR: <input>:1:{text.find(name) + 1}: undeclared reference to '{name}' (in container '')")
    for name in sorted(set(program.variables()) - variables):
        if not any(function.startswith(f"{name}.") for function in _known_functions()) and not _is_bound(name, text):
            raise RuleError(
                f"ERROR: <input>:1:{text.find(name) + 1}: undeclared reference to '{name}' (in container '')"
            )
    return program


def _is_name(name: str) -> bool:
    # operators are functions too: `_==_`, `!_`, `@in`
    return re.fullmatch(r"[A-Za-z][\w.]*", name) is not None


def _is_bound(name: str, text: str) -> bool:
    """Whether a loop names its variable so."""
    return re.search(rf"\(\s*{re.escape(name)}\s*,", text) is not None


@cache
def _known_functions() -> frozenset[str]:
    known = frozenset(_context().functions) | cel_library.NATIVE
    return known | {name.rpartition(".")[2] for name in known}  # a program tells only the last part of a dotted name


_VALUES: dict[str, Any] = {}
"""What `self` and `oldSelf` are in the rule that is running."""


@cache
def _context() -> cel.Context:
    # One for all rules: the server's loop is the only thread that checks objects. The values come through a resolver,
    # because adding a variable makes the package build its whole environment anew (18 us instead of 6).
    context = cel_library.new_context()
    context.add_variable("self", None)
    context.add_variable("oldSelf", None)
    context.set_variable_resolver(_VALUES.get)
    return context


def nested_loops(text: str) -> int:
    """How deep calls of loop macros lie in one another."""
    depth, deepest, open_loops = 0, 0, []
    starts = {match.end() - 1 for match in _LOOP.finditer(text)}
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
            if at in starts:
                open_loops.append(depth)
                deepest = max(deepest, len(open_loops))
        elif char == ")":
            if open_loops and open_loops[-1] == depth:
                open_loops.pop()
            depth -= 1
    return deepest


def run_rule(rule: CompiledRule, value: Any, old: Any, has_old: bool, path: str, size: int) -> FieldError | None:
    """What is wrong with one value by one rule; `size` bounds the length of any list or map in it."""
    if rule.is_transition and not has_old and not rule.optional_old_self:
        return None
    if rule.loops and size**rule.loops > MOST_STEPS:
        return FieldError(Cause.INVALID, path, f"Invalid value: {OUT_OF_BUDGET}")
    context = _context()
    _VALUES["self"] = value
    _VALUES["oldSelf"] = _old_self(rule, old, has_old) if rule.is_transition else None
    try:
        result = rule.program.execute(context)
    except FAILURES as error:
        return FieldError(Cause.INVALID, path, f"Invalid value: {go_words(error)} evaluating rule: {rule.said()}")
    if result is True:
        return None
    return _failed(rule, context, path)


def _old_self(rule: CompiledRule, old: Any, has_old: bool) -> Any:
    if not rule.optional_old_self:
        return old
    return cel.OptionalValue.of(old) if has_old else cel.OptionalValue.none()


def _failed(rule: CompiledRule, context: cel.Context, path: str) -> FieldError:
    cause, words = _REASONS.get(rule.reason, _REASONS["FieldValueInvalid"])
    where = f"{path}{_field_path(rule.field_path)}" if path else _field_path(rule.field_path).lstrip(".")
    detail = _message(rule, context)
    return FieldError(cause, where or "<nil>", words if cause is Cause.DUPLICATE else f"{words}: {detail}")


def _field_path(said: str) -> str:
    return re.sub(r"\['([^']*)'\]", r"[\1]", said)


def _message(rule: CompiledRule, context: cel.Context) -> str:
    if rule.message_program is None:
        return rule.said()
    try:
        made = rule.message_program.execute(context)
    except FAILURES:
        return rule.said()
    text = made.strip() if isinstance(made, str) else ""
    return text if text and "\n" not in text else rule.said()


def go_words(error: Exception) -> str:
    """What went wrong while an expression was evaluated, as Kubernetes says it."""
    if isinstance(error, KeyError):
        return f"no such key: {error.args[0]!s}".replace("'", "")
    text = str(error)
    if text.startswith("No such overload"):
        return "no such overload"
    return text.splitlines()[0] if text else type(error).__name__


@lru_cache(maxsize=2048)
def _pattern(pattern: str) -> "cel.Program":
    return cel.compile("self.matches(pattern)")


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text; Rust's expressions take linear time, Python's need not."""
    # Quantities, names and API versions come again and again, at 60 us each: 7 % of the life of a small job.
    return _matches_short(pattern, text) if len(text) <= 128 else _matches(pattern, text)


def _matches(pattern: str, text: str) -> bool:
    return bool(_pattern(pattern).execute({"self": text, "pattern": pattern}))


_matches_short = lru_cache(maxsize=8192)(_matches)


def pattern_error(pattern: str) -> str:
    """Why a pattern is none; empty if it is one."""
    try:
        matches(pattern, "")
    except FAILURES as error:
        return str(error).splitlines()[0]
    return ""
