"""The tool: code in the session of the conversation, which is opened at the first call, sleeps between calls and ends when idle for long."""

from collections.abc import Generator
from typing import Any

from dify_plugin import Tool
from dify_plugin.entities.tool import ToolInvokeMessage

from hekla_sdk import Gateway, HeklaError, NotFoundError, Session

TIMEOUT_S = 60.0
FREEZE_S = 30.0
MOST_TOLD = 20_000


class RunCode(Tool):
    """Run code in a sandbox."""

    def _invoke(self, tool_parameters: dict[str, Any]) -> Generator[ToolInvokeMessage, None, None]:
        try:
            result = self._session(f"{tool_parameters.get('template') or 'base'}").run_code(
                f"{tool_parameters.get('code', '')}", language=f"{tool_parameters.get('language') or 'python'}",
                timeout=TIMEOUT_S,
            )  # fmt: skip
        except HeklaError as error:
            yield self.create_text_message(f"the sandbox refused: {error}")
            return
        error = result.error
        told = [result.stdout, result.stderr, result.text, (error.traceback or f"{error}") if error else ""]
        text = "\n".join(one.rstrip("\n") for one in told if one) or "[no output]"
        yield self.create_text_message(text[:MOST_TOLD] + " ... [cut]" if len(text) > MOST_TOLD else text)
        for image in result.images:
            kind = "image/png" if image.startswith(b"\x89PNG") else "image/jpeg"
            yield self.create_blob_message(image, meta={"mime_type": kind})

    def _session(self, template: str) -> Session:
        """The conversation's; another where that has ended."""
        known = self.runtime.credentials
        gateway = Gateway(f"{known.get('url', '')}", f"{known.get('key', '')}")
        conversation = self.session.conversation_id
        if not conversation:  # of a workflow, which has no next call
            return Session.create(template, timeout=2 * TIMEOUT_S, gateway=gateway)
        name = f"session-of-{conversation}-{template}"
        try:
            if self.session.storage.exist(name):
                return Session.connect(self.session.storage.get(name).decode(), gateway=gateway)
        except NotFoundError:
            pass
        made = Session.create(template, freeze_after=FREEZE_S, metadata={"conversation": conversation}, gateway=gateway)
        self.session.storage.set(name, made.id.encode())
        return made
