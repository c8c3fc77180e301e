"""What CUDA's kernels take and the host's refuse: on the device it works, on the host it raises."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("pjrt_device")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_counts_of_integers(dtype: torch.dtype, compiled: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, 4, 0, 3)

    x = torch.tensor([0, 1, 1, 3, 3, 3, 9], dtype=dtype)
    run = torch.compile(function, backend="pjrt") if compiled else function
    found = run(x.to("pjrt"))
    assert (found.dtype, found.device.type) == (dtype, "pjrt")
    assert found.tolist() == [1, 2, 0, 3]
    with pytest.raises(NotImplementedError, match="histogram_cpu"):
        function(x)
    assert torch.equal(run(x.float().to("pjrt")).cpu(), function(x.float()))
    torch.compiler.reset()
