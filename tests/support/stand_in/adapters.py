"""LoRA adapters, as far as the supervisor loads and unloads them."""

from __future__ import annotations

import json


class Adapters:
    """The loaded ones."""

    def __init__(self, refused: str) -> None:
        self.loaded: dict[str, str] = {}
        self._refused = refused

    def change(self, path: str, body: bytes) -> tuple[int, bytes]:
        """As vLLM answers: 400 for a name that is there already, 404 for one that is not."""
        request = json.loads(body)
        name = request["lora_name"]
        if path.endswith("/unload_lora_adapter"):
            if self.loaded.pop(name, None) is None:
                return 404, _error(f"The lora adapter '{name}' cannot be found.")
        elif name in self.loaded:
            return 400, _error(f"The lora adapter '{name}' has already been loaded.")
        elif name == self._refused:
            return 500, _error("Call to add_lora method failed: expected target modules in {'q_proj'}")
        else:
            self.loaded[name] = request["lora_path"]
        return 200, b"Success"


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message}}).encode()
