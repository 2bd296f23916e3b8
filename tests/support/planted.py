"""The operator with a defect: `python -m tests.support.planted ARGUMENTS...`, with PLANTED=NAME:HOW in the environment.

Deciding about an LLMService of that name raises an exception (`raise`), or ends the process without a word (`exit`).
The product knows nothing of it: what the operator's main module calls `decide` is exchanged before it starts.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def main() -> int:
    """As the operator's own."""
    doomed, _, how = os.environ["PLANTED"].partition(":")
    assert how in ("raise", "exit"), how
    operator: Any = importlib.import_module("llmservice_operator.__main__")
    decide = operator.decide

    def planted(service: Any, *rest: Any) -> Any:
        if service.name == doomed:
            if how == "exit":
                os._exit(77)
            raise OverflowError("planted")
        return decide(service, *rest)

    operator.decide = planted
    return int(operator.main())


if __name__ == "__main__":
    sys.exit(main())
