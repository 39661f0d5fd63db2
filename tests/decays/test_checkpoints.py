"""Stored numbers that numpy has no type for are widened to what torch makes of their bits."""

import numpy as np
import pytest
import torch

from plkernel.decays.checkpoints import widened


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_every_pattern_of_bits_is_the_number_of_torch(name: str) -> None:
    dtype = getattr(torch, name)
    bits = np.uint16 if dtype.itemsize == 2 else np.uint8
    raw = np.arange(256**dtype.itemsize).astype(bits)
    signed = torch.from_numpy(raw.view(raw.dtype.str.replace("u", "i")))
    expected = signed.view(dtype).double().numpy()
    np.testing.assert_array_equal(widened(raw, name), expected)
