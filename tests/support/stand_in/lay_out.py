"""Lay the stand-in out as the package that the supervisor looks for, with a model folder for its preflight.

The package is made here, in its image, and not kept in the repository: there it would hide the real one.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

VERSION = "0.32.0"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
ENTRY = """from tests.support.stand_in.__main__ import main

if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
"""
# Of a rank without an API, as llmservice_runtime.headless uses it.
SERVE = """import sys

from tests.support.stand_in.__main__ import main


class Serve:
    name = "serve"

    def subparser_init(self, subparsers):
        return subparsers

    def validate(self, arguments):
        pass

    def cmd(self, arguments):
        sys.exit(main(arguments[1:]))


def cmd_init():
    return [Serve()]
"""
PARSER = """class FlexibleArgumentParser:
    def __init__(self, prog):
        pass

    def add_subparsers(self, dest):
        pass

    def parse_args(self, words):
        return words
"""
# As far as the preflight of a GPU service asks: eight free H100, whatever the node has.
TORCH = """class version:
    hip = None


class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 8)
    mem_get_info = staticmethod(lambda index: (79 << 30, 80 << 30))
    get_device_capability = staticmethod(lambda index: (9, 0))
    get_device_name = staticmethod(lambda index: "NVIDIA H100 80GB HBM3")
"""


def lay_out(packages: Path, model: Path) -> None:
    """Write the package, its metadata and the model."""
    for module, text in (
        ("entrypoints/openai/api_server", ENTRY),
        ("entrypoints/cli/serve", SERVE),
        ("utils/argparse_utils", PARSER),
    ):
        path = packages / "vllm" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in ("", "entrypoints", "entrypoints/openai", "entrypoints/cli", "utils"):
        (packages / "vllm" / folder / "__init__.py").touch()
    (packages / "torch.py").write_text(TORCH)
    metadata = packages / f"vllm-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    (model / "model.safetensors").write_bytes(weights())


def weights() -> bytes:
    """A safetensors file of one small tensor."""
    header = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(256)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), Path(sys.argv[2]))
