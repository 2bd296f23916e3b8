"""A pytest plugin (`-p tests.support.no_avx512`): torch reports a CPU without AVX-512 and AMX.

vLLM then loads the kernels it has for AVX2, as on the CPUs of many laptops and of older servers.
"""

from __future__ import annotations

import torch.cpu

for _name in ("_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"):
    assert hasattr(torch.cpu, _name), f"torch asks the CPU another way now: torch.cpu.{_name} is gone"
    setattr(torch.cpu, _name, lambda: False)
