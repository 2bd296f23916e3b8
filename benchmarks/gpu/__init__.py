"""What a machine with a GPU and torch shows of the planner's figures, without a cluster and without vLLM.

`python -m benchmarks.gpu` prints it, `--page FILE` writes it as a page. Everything but torch is the standard library,
the runtime and the planner's arithmetic, so that it also runs in another environment's Python with torch
(PYTHONPATH=operator:runtime:.).
"""
