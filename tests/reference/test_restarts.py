"""A process of a client that dies and is started anew, again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pjrt_bridge.stablehlo.interpret import interpretable
from tests.reference.ranks import run_ranks

RESTARTS = 100

pytestmark = pytest.mark.skipif(interpretable.threads() < 2, reason="each device needs a thread")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_wrong_value_and_no_hang(tmp_path: Path) -> None:
    """Every other life ends with SIGKILL in the middle of its client's life, the rest orderly."""
    found = run_ranks(
        f"""
longest, sums = 0.0, []

def life(number):
    client = reference(store, timeout=20)
    result = run(client, compiled(client, all_reduce()), number)
    if RANK == 1 and number % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    client.close()
    return result

for number in range({RESTARTS}):
    begin = time.monotonic()
    if RANK == 1:
        child = os.fork()
        if child == 0:
            os._exit(0 if life(number) == [[2.0 * number + 1] * 3] else 3)
        sums.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        sums.append(life(number)[0])
    longest = max(longest, time.monotonic() - begin)
print(json.dumps([longest, sums]))
""",
        2,
        tmp_path,
        timeout=800,
    )
    (first, sums), (second, statuses) = found
    assert sums == [[2.0 * number + 1] * 3 for number in range(RESTARTS)]
    assert statuses == [0, -9] * (RESTARTS // 2)
    assert max(first, second) < 30
