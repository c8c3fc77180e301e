"""Ctrl-C during a compilation: seen at once, and the compilation ends by itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pjrt_bridge.runtime.compile.interruptible import interruptible

ROOT = Path(__file__).parents[3]
PROGRAM = """
import gc, os, signal, threading, time
import pjrt_bridge
from pjrt_bridge import live_handles
from tests import programs

# Jobs in the background of a shell ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# XLA takes about 10 ms for each of them.
SORT = '''  %{n} = "stablehlo.sort"(%{m}) <{{dimension = 0 : i64}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }}) : (tensor<{size}xf32>) -> tensor<{size}xf32>
  %r{n} = stablehlo.slice %{n} [1:{size}] : (tensor<{size}xf32>) -> tensor<{less}xf32>
'''
COUNT = 300
lines = ["func.func @main(%r0: tensor<1000xf32>) -> tensor<700xf32> {"]
for n in range(1, COUNT + 1):
    size = 1001 - n
    lines.append(SORT.format(n=n, m=f"r{n - 1}", size=size, less=size - 1))
lines.append(f"  return %r{COUNT} : tensor<700xf32>")
lines.append("}")
text = chr(10).join(lines)

client = pjrt_bridge.client()
before = live_handles()
name = "pjrt_bridge compilation"

def is_compiling():
    return any(thread.name == name for thread in threading.enumerate())

def interrupt():
    while not is_compiling():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGINT)

program = pjrt_bridge.stablehlo.Program.parse(text)
threading.Thread(target=interrupt).start()
try:
    client.compile(program)
except KeyboardInterrupt:
    print("seen" if is_compiling() else "late")
else:
    print("not interrupted")
# The client is usable, and what was compiled does not stay.
client.compile(programs.ADD).close()
while is_compiling():
    time.sleep(0.1)
gc.collect()
print(live_handles() == before)
"""


@pytest.mark.usefixtures("compiled_anew")
def test_ctrl_c_is_seen_and_the_compilation_ends_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.split() == ["seen", "True"]


def test_what_is_raised_comes_through() -> None:
    def fail() -> None:
        raise ValueError(threading.current_thread().name)

    with pytest.raises(ValueError, match="pjrt_bridge compilation"):
        interruptible(fail)


def test_the_caller_alone_holds_what_is_given() -> None:
    interval = sys.getswitchinterval()
    # The other thread is interrupted between any two instructions.
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3000):
            given = interruptible(lambda: [0])
            assert sys.getrefcount(given) == 2
    finally:
        sys.setswitchinterval(interval)


def test_other_threads_call_by_themselves() -> None:
    found: list[str] = []

    def call() -> None:
        found.append(interruptible(lambda: threading.current_thread().name))

    thread = threading.Thread(target=call, name="another")
    thread.start()
    thread.join()
    assert found == ["another"]
