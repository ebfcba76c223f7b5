"""The names under which an engine answers: its model's, and those of adapters that are loaded; refusals are vLLM's."""

import time
from typing import Any
from uuid import uuid4

from hekla.app.engine.bodies import LoraChange
from hekla.app.engine.checking import BadBodyError


class Adapters:
    """The model's names and its adapters."""

    def __init__(self, names: tuple[str, ...], root: str, max_model_len: int, loaded: dict[str, str]) -> None:
        self.names = names
        self.loaded = dict(loaded)
        self._root = root
        self._max_model_len = max_model_len
        self._created = int(time.time())

    def lora_of(self, model: str | None) -> str:
        """The adapter that a request's model names, empty for the model itself. Raises BadBodyError: there is none."""
        if not model or model in self.names:
            return ""
        if model in self.loaded:
            return model
        said = f"The model `{model}` does not exist. Valid aliases: {', '.join(self.names)}."
        raise BadBodyError(said, status=404, kind="NotFoundError", param="model")

    def load(self, change: LoraChange) -> str:
        """Load an adapter."""
        name = change.lora_name
        if not name or not change.lora_path:
            raise BadBodyError("Both 'lora_name' and 'lora_path' must be provided.", kind="InvalidUserInput")
        if name in self.names:
            raise BadBodyError(
                f"The lora adapter '{name}' conflicts with a served base model.", kind="InvalidUserInput"
            )
        if name in self.loaded and not change.load_inplace:
            raise BadBodyError(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                kind="InvalidUserInput",
            )
        self.loaded[name] = change.lora_path
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, change: LoraChange) -> str:
        """Unload an adapter."""
        if not change.lora_name:
            raise BadBodyError("'lora_name' needs to be provided to unload a LoRA adapter.", kind="InvalidUserInput")
        if self.loaded.pop(change.lora_name, None) is None:
            raise BadBodyError(
                f"The lora adapter '{change.lora_name}' cannot be found.", status=404, kind="NotFoundError"
            )
        return f"Success: LoRA adapter '{change.lora_name}' removed successfully."

    def list(self) -> dict[str, Any]:
        """GET /v1/models."""
        own = [self._card(name, self._root, None, self._max_model_len) for name in self.names]
        loras = [self._card(name, path, self.names[0], None) for name, path in self.loaded.items()]
        return {"object": "list", "data": own + loras}

    @property
    def _permission(self) -> dict[str, Any]:
        """What OpenAI's API once told of each model."""
        return {
            "id": f"modelperm-{uuid4().hex[:16]}", "object": "model_permission", "created": self._created,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
            "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip

    def _card(self, name: str, root: str, parent: str | None, length: int | None) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": self._created, "owned_by": "vllm", "root": root,
            "parent": parent, "max_model_len": length, "permission": [self._permission],
        }  # fmt: skip
