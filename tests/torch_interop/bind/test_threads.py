"""PyTorch's threads make way for programs on the same cores, and for those alone that are long."""

import pytest

from tests.forked import TORCH
from tests.plugins import run_python

COUNT = """
import os, time, torch
torch.set_num_threads(3)
function = torch.compile(lambda x: (x @ x).sin(), backend="pjrt")
x = torch.randn({size}, {size})
function(x)
torch.randn(1000, 1000).exp()
before = len(os.listdir("/proc/self/task"))
function(x)
for _ in range(100):
    gone = before - len(os.listdir("/proc/self/task"))
    if gone == 2:
        break
    time.sleep(0.01)
print(gone)
torch.randn(1000, 1000).exp()
"""


@pytest.mark.parametrize(
    ("size", "value", "gone"), [(500, "", "2"), (5, "", "0"), (500, "off", "0")]
)
def test_threads_go_before_long_programs_alone(
    size: int, value: str, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_OPENMP_PAUSE", value)
    assert run_python(COUNT.format(size=size), imported=[TORCH]) == gone
