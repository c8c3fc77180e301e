"""Several threads that call one compiled function at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.differential.ir import Program
from tests.differential.observing import Call, observe


def observe_threads(
    function: Callable[..., Any], namespace: dict[str, Any], program: Program, count: int
) -> list[list[Call]]:
    """What each thread sees, all of which make the same calls on arguments of their own."""
    start = threading.Barrier(count)
    found: list[list[Call]] = [[] for _ in range(count)]
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait(60)
            found[number] = observe(function, namespace["arguments"], program)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return found
