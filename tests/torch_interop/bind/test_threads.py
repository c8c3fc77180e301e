"""PyTorch's threads make way for programs on the same cores, and for those alone that are long."""

import pytest

from tests.forked import TORCH
from tests.plugins import run_python

CALLED = """
import os, time, torch
torch.set_num_threads(3)

def threads():
    return len(os.listdir("/proc/self/task"))

function = torch.compile(lambda x: (x @ x).sin(), backend="pjrt")
x = torch.randn({size}, {size})
function(x)
torch.randn(1000, 1000).exp()
before = threads()
# It takes some calls to find out how long the program is, and one that is slowed down may seem so.
gone = []
for _ in range(5):
    torch.randn(1000, 1000).exp()
    function(x)
    for _ in range(20):
        if threads() == before - 2:
            break
        time.sleep(0.01)
    gone.append(before - threads())
print(max(gone) if {is_long} else min(gone))
torch.randn(1000, 1000).exp()
"""


@pytest.mark.parametrize(
    ("size", "value", "gone"), [(1000, "", "2"), (5, "", "0"), (1000, "off", "0")]
)
def test_threads_go_before_long_programs_alone(
    size: int, value: str, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_OPENMP_PAUSE", value)
    code = CALLED.format(size=size, is_long=gone != "0")
    assert run_python(code, imported=[TORCH]) == gone


ASKED = """
import torch
from pjrt_bridge.torch_interop.bind import threads
torch.set_num_threads({threads})
print(threads.idle_threads() is None)
"""


@pytest.mark.parametrize(("count", "is_none"), [(1, "True"), (2, "False")])
def test_pytorch_with_one_thread_has_none_that_idle(count: int, is_none: str) -> None:
    assert run_python(ASKED.format(threads=count), imported=[TORCH]) == is_none
