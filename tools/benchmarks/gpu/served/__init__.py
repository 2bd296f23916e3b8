"""A real vLLM under the product's own supervisor on one machine with a GPU, without Kubernetes.

`python -m benchmarks.gpu.served --out DIR --seconds N` measures the most valuable first and writes each result at once.
Sizes are real, weights are not (`--load-format dummy`). `--device cpu` rehearses every step with tiny models.
"""
