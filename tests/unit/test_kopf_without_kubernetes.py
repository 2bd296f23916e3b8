"""The operator's process starts without the `kubernetes` package, and can still use it."""

import subprocess
import sys

SCRIPT = """
import sys
import llmservice_operator.__main__
assert "kopf" in sys.modules
print(sorted(name for name in sys.modules if name.partition(".")[0] == "kubernetes"))
import kubeloop.kubeconfig
import kubernetes.client
print(kubernetes.client.V1Pod.__name__)
"""


def test_kopf_brings_no_kubernetes_package_and_hides_none() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["[]", "V1Pod"]), done.stderr
