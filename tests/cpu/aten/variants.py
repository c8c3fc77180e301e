"""The process that tries uses, with kernels that are wrong: `python -m tests.cpu.aten.variants`.

What is wrong with which operator, the environment says: `AT_KILLED`, `AT_HANGING`, `AT_WRONG` and
`AT_RAISING` hold a part of a check's name each.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from pjrt_bridge.runtime import Client
from pjrt_bridge_cpu.aten import trial
from pjrt_bridge_cpu.aten.trial import UseTrial

judge = UseTrial.judge


def broken(tried: UseTrial, client: Client) -> str:
    def has(name: str) -> bool:
        part = os.environ.get(name)
        return part is not None and part in str(tried._check)

    if has("AT_KILLED"):
        os.kill(os.getpid(), signal.SIGKILL)
    if has("AT_HANGING"):
        time.sleep(600)
    if has("AT_RAISING"):
        raise RuntimeError("not foreseen")
    return "its numbers are not PyTorch's" if has("AT_WRONG") else judge(tried, client)


UseTrial.judge = broken  # type: ignore[method-assign]

if __name__ == "__main__":
    trial.main(sys.argv[1:])
