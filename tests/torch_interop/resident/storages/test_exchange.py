"""Resident tensors as buffers, and buffers as resident tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pjrt_bridge
from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop.device import buffer_of, tensor_of
from pjrt_bridge.torch_interop.resident.client import chosen
from pjrt_bridge.torch_interop.resident.storages.transfer import COUNTS


def test_a_tensor_and_its_buffer_are_the_same_memory() -> None:
    x = torch.arange(6.0).reshape(2, 3).to("pjrt:1")
    before = COUNTS.to_device, COUNTS.to_host
    buffer = buffer_of(x)
    assert buffer.device is chosen.client().devices[1]
    again = tensor_of(buffer)
    assert again.device == torch.device("pjrt:1")
    assert buffer_of(again) is buffer
    assert (COUNTS.to_device, COUNTS.to_host) == before
    np.testing.assert_array_equal(np.from_dlpack(buffer), [[0, 1, 2], [3, 4, 5]])
    # Arrays that others have do not change.
    x.add_(1)
    np.testing.assert_array_equal(np.from_dlpack(buffer), [[0, 1, 2], [3, 4, 5]])
    assert again.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_views_become_buffers_of_their_own() -> None:
    x = torch.arange(6.0).reshape(2, 3).to("pjrt")
    np.testing.assert_array_equal(np.asarray(buffer_of(x.t())), [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(np.asarray(buffer_of(x[1])), [3, 4, 5])
    z = torch.tensor([1 + 2j]).to("pjrt").conj()
    np.testing.assert_array_equal(np.asarray(buffer_of(z)), [1 - 2j])


def test_a_program_of_its_own_computes_with_resident_tensors() -> None:
    x = torch.arange(4.0).to("pjrt")
    executable = chosen.client().compile(
        """
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.multiply %x, %x : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        """
    )
    (found,) = executable(buffer_of(x))
    assert (tensor_of(found) + 1).tolist() == [1, 2, 5, 10]


def test_what_is_elsewhere_is_refused() -> None:
    with pytest.raises(DeviceError, match="expected one on device 'pjrt'"):
        buffer_of(torch.ones(3))
    other = pjrt_bridge.client("reference")
    with pytest.raises(DeviceError, match="buffer of plugin 'reference'"):
        tensor_of(other.put(np.ones(3, np.float32)))
