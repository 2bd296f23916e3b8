"""The operator with a defect: `python -m tests.support.planted ARGUMENTS...`, with PLANTED=NAME:HOW in the environment.

Deciding about an LLMService of that name raises an exception (`raise`), or ends the process without a word (`exit`).
The product knows nothing of it: `decide` is exchanged before the operator's main module is loaded.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def main() -> int:
    """As the operator's own."""
    defective, _, how = os.environ["PLANTED"].partition(":")
    assert how in ("raise", "exit"), how
    module: Any = importlib.import_module("llmservice_operator.service.decide")
    decide = module.decide

    def planted(inputs: Any) -> Any:
        if inputs.parent["metadata"]["name"] == defective:
            if how == "exit":
                os._exit(77)
            raise OverflowError("planted")
        return decide(inputs)

    module.decide = planted
    return int(importlib.import_module("llmservice_operator.__main__").main())


if __name__ == "__main__":
    sys.exit(main())
