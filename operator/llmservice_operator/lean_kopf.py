"""kopf without the `kubernetes` package, which it imports where it can: 0.1 s of CPU at each start, and 10 MiB.

kopf does so only to recognize that package's classes in handlers' results, and no handler here returns any. A
kubeconfig is still read by the package, which `kube.kubeconfig` imports when there is one.
"""

from __future__ import annotations

import sys

_kubernetes = sys.modules.pop("kubernetes", None)
sys.modules["kubernetes"] = None  # type: ignore[assignment]  # imports of it raise ModuleNotFoundError
try:
    import kopf
finally:
    del sys.modules["kubernetes"]
    if _kubernetes is not None:
        sys.modules["kubernetes"] = _kubernetes

__all__ = ["kopf"]
