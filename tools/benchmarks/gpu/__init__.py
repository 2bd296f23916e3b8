"""What a machine with a GPU shows: attention and memory with torch alone, a real vLLM under the runtime (`served`).

Everything but torch and vLLM is in packages.txt, so that it also runs in another environment's Python
(PYTHONPATH=operator:runtime:cli:fetch:activator:.).
"""
