"""Rounded weights as compressed-tensors itself unpacks them."""

import pytest

# torch is imported by the tests: at the top, each process that collects them would do it.
pytestmark = [
    pytest.mark.vllm,
    # Of the libraries' own, in their own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_eight_nibbles_to_a_word_as_the_format_wants_them() -> None:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from localcluster.tinymodel.quantize import rounded, stored

    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    steps, scale = rounded(weight, 4, 32)
    tensors = stored("layer", steps, scale, 4)
    assert tensors["layer.weight_packed"].shape == (6, 8)
    assert torch.equal(unpack_from_int32(tensors["layer.weight_packed"], 4, torch.Size((6, 64))), steps)


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 32)])
def test_a_weight_comes_back_within_half_a_step(bits: int, group: int | None) -> None:
    import torch

    from localcluster.tinymodel.quantize import restored, rounded

    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    steps, scale = rounded(weight, bits, group)
    off = (restored(steps, scale) - weight).abs().unflatten(1, (scale.shape[1], -1))
    assert steps.unique().numel() > 2 ** (bits - 1) - 3
    assert bool((off <= scale[:, :, None] * 0.5001).all())
