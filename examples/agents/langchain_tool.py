"""A LangChain tool that runs an agent's Python in a sandbox, whose variables stay from call to call.

    pip install ./sdk langchain-core
    export HEKLA_AGENTS_URL=http://127.0.0.1:8090 HEKLA_AGENTS_KEY=...

    with Session.create(freeze_after=60) as session:
        agent = create_agent(model, tools=[python_tool(session)])

The session stands still between the turns of a conversation and wakes with the next call.
"""

import sys
from typing import TYPE_CHECKING

from hekla_sdk import HeklaError, Result, Session

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

DESCRIPTION = (
    "Run Python code in a sandbox and return what it prints and the value of its last expression. "
    "Variables, imports and files stay for later calls. There is no network."
)
TIMEOUT_S = 60.0
MOST_TOLD = 20_000
"""Characters that go back to the model, whose context is not for free."""


def told_to_model(result: Result) -> str:
    """What came of a cell, in an order that a model reads well: output, value, error."""
    parts = [result.stdout, result.stderr, result.text]
    if result.error is not None:
        parts.append(result.error.traceback or f"{result.error}")
    if result.images:
        parts.append(f"[{len(result.images)} pictures were shown]")
    text = "\n".join(part.rstrip("\n") for part in parts if part)
    return (text[:MOST_TOLD] + " ... [cut]" if len(text) > MOST_TOLD else text) or "[no output]"


def run_python(session: Session, code: str) -> str:
    """Run code; refusals are told to the model, which may ask for less."""
    try:
        return told_to_model(session.run_code(code, timeout=TIMEOUT_S))
    except HeklaError as error:
        return f"the sandbox refused: {error}"


def python_tool(session: Session) -> "BaseTool":
    """The tool over a session."""
    from langchain_core.tools import StructuredTool

    def python(code: str) -> str:
        return run_python(session, code)

    return StructuredTool.from_function(python, name="python", description=DESCRIPTION)


def main() -> None:
    """Without a model: what the tool answers to each line of standard input."""
    with Session.create(freeze_after=60) as session:
        for line in sys.stdin:
            print(run_python(session, line))


if __name__ == "__main__":
    main()
