"""Variants are compiled once each, in a bounded cache, and nothing waits without need."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.mixed.variants import EAGER, LIMIT, PATIENCE, UNUSED, VariantCache


class Compiler:
    """Compiles keys, and notes what for."""

    def __init__(self, uncompiled: str | None = None) -> None:
        self.cache: VariantCache[str] = VariantCache(uncompiled)
        self.compiled: list[tuple[Hashable, Hashable | None]] = []

    def find(self, key: Hashable) -> str:
        def compile(last: Hashable | None) -> str:
            self.compiled.append((key, last))
            return f"compiled for {key}"

        return self.cache.find(key, compile)


def test_each_is_compiled_once_and_told_what_came_before() -> None:
    compiler = Compiler()
    for key in (2, 3, 2, 2, 3):
        assert compiler.find(key) == f"compiled for {key}"
    assert compiler.compiled == [(2, None), (3, 2)]
    assert len(compiler.cache) == 2


def test_the_one_that_was_not_used_longest_goes_first() -> None:
    compiler = Compiler()
    for key in (*range(LIMIT), 0, LIMIT):
        compiler.find(key)
    assert len(compiler.compiled) == LIMIT + 1
    assert len(compiler.cache) == LIMIT
    compiler.find(0)
    assert len(compiler.compiled) == LIMIT + 1
    compiler.find(1)
    assert compiler.compiled[-1] == (1, LIMIT)


def test_after_many_a_new_one_is_compiled_when_it_comes_again() -> None:
    compiler = Compiler("host")
    for key in range(EAGER):
        assert compiler.find(key) == f"compiled for {key}"
    assert compiler.find(100) == compiler.find(101) == "host"
    assert compiler.find(100) == "compiled for 100"
    assert compiler.find(0) == "compiled for 0"
    assert len(compiler.compiled) == EAGER + 1


class Beside:
    """Compilations that wait until they are told to go on."""

    def __init__(self) -> None:
        self.works: list[Callable[[], None]] = []
        self.able = True
        self.cache: VariantCache[str] = VariantCache("host", None, self._begin)
        for key in range(EAGER):
            self.find(key)

    def _begin(self, work: Callable[[], None]) -> bool:
        if self.able:
            self.works.append(work)
        return self.able

    def find(self, key: Hashable, *, fails: bool = False) -> str:
        def compile(last: Hashable | None) -> str:
            if fails:
                raise ZeroDivisionError
            return f"compiled for {key}"

        return self.cache.find(key, compile, later=lambda: compile)


def test_what_comes_again_is_compiled_beside_the_calls() -> None:
    beside = Beside()
    assert [beside.find("new") for _ in range(4)] == ["host"] * 4
    (work,) = beside.works
    work()
    assert beside.find("new") == "compiled for new"
    assert len(beside.cache) == EAGER + 1


def test_what_cannot_be_begun_is_begun_by_a_later_call() -> None:
    beside = Beside()
    beside.able = False
    assert [beside.find("new") for _ in range(3)] == ["host"] * 3
    beside.able = True
    assert beside.find("new") == "host"
    beside.works.pop()()
    assert beside.find("new") == "compiled for new"


def test_what_fails_beside_the_calls_is_raised_in_a_call() -> None:
    beside = Beside()
    for _ in range(2):
        assert beside.find("new", fails=True) == "host"
    beside.works.pop()()
    with pytest.raises(ZeroDivisionError):
        beside.find("new", fails=True)


@pytest.mark.parametrize("waits", [True, False])
def test_a_variant_that_another_stands_for_meanwhile(waits: bool) -> None:
    works: list[Callable[[], None]] = []

    def begin(work: Callable[[], None]) -> bool:
        works.append(work)
        return True

    cache: VariantCache[str] = VariantCache("host", None, None if waits else begin)
    assert cache.ready("own", lambda: lambda _: "compiled") == waits
    assert cache.ready("own", lambda: pytest.fail("it is begun twice")) == waits
    for work in works:
        work()
    assert cache.ready("own", lambda: pytest.fail("it is compiled"))
    assert cache.find("own", lambda _: pytest.fail("it is compiled")) == "compiled"


def test_sizes_in_rotation_are_not_compiled_for_ever_and_each_call_of_the_host_is_told() -> None:
    told: list[str] = []
    compiler = Compiler("host")
    compiler.cache = VariantCache("host", told.append)
    rounds = PATIENCE + 3
    for _ in range(rounds):
        for key in range(LIMIT + 26):
            compiler.find(key)
    assert len(compiler.compiled) == LIMIT
    # What has come as often as is enough for all is compiled, and there is no room for the rest.
    assert Counter(told)["full"] == 26 * (rounds - PATIENCE + 1)
    assert set(told) == {"new", "full"}
    assert compiler.find(0) == "compiled for 0"
    assert compiler.find(LIMIT + 25) == "host"


@given(st.integers(1, 200), st.integers(1, 2000), st.randoms(use_true_random=False))
def test_sizes_at_random_are_compiled_ever_more_rarely(
    different: int, calls: int, random: Any
) -> None:
    compiler = Compiler("host")
    for _ in range(calls):
        compiler.find(random.randrange(different))
    assert len(compiler.compiled) <= EAGER + math.log2(PATIENCE) + calls / PATIENCE


@pytest.mark.parametrize("different", [EAGER, 2 * EAGER, LIMIT])
def test_a_few_sizes_in_rotation_are_all_compiled(different: int) -> None:
    compiler = Compiler("host")
    for key in [*range(different)] * PATIENCE:
        compiler.find(key)
    assert len(compiler.compiled) == different


def test_new_sizes_take_the_place_of_those_that_are_not_used_any_more() -> None:
    compiler = Compiler("host")
    for key in [*range(LIMIT)] * PATIENCE:
        compiler.find(key)
    for _ in range(UNUSED + LIMIT + PATIENCE):
        compiler.find("new")
    assert compiler.find("new") == "compiled for new"
    assert len(compiler.cache) == LIMIT


def test_what_is_wanted_is_compiled_at_once() -> None:
    cache: VariantCache[str] = VariantCache("host")
    for key in range(LIMIT):
        assert cache.find(key, lambda _: "compiled", wanted=True) == "compiled"
    assert cache.find(LIMIT, lambda _: "compiled", wanted=True) == "host"


class SeenKey:
    """A key that tells when the cache looks for it."""

    def __init__(self, looked_for: threading.Semaphore) -> None:
        self.looked_for = looked_for

    def __hash__(self) -> int:
        self.looked_for.release()
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeenKey)


def test_threads_that_need_the_same_compile_once() -> None:
    cache: VariantCache[str] = VariantCache()
    compiled: list[str] = []
    looked_for = threading.Semaphore(0)
    compiling, done = threading.Event(), threading.Event()

    def compile(_: Hashable | None) -> str:
        compiled.append("once")
        compiling.set()
        assert done.wait(30)
        return "made"

    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.find(SeenKey(looked_for), compile)))
        for _ in range(8)
    ]
    threads[0].start()
    assert compiling.wait(30)
    while looked_for.acquire(blocking=False):
        pass
    for thread in threads[1:]:
        thread.start()
    for _ in threads[1:]:
        assert looked_for.acquire(timeout=30)
    done.set()
    for thread in threads:
        thread.join()
    assert (compiled, found) == (["once"], ["made"] * 8)


def test_nothing_waits_while_something_else_compiles() -> None:
    cache: VariantCache[str] = VariantCache()
    cache.find("known", lambda _: "known")
    compiling, done = threading.Event(), threading.Event()

    def slow(_: Hashable | None) -> str:
        compiling.set()
        assert done.wait(30)
        return "slow"

    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(cache.find("slow", slow)))
    thread.start()
    assert compiling.wait(30)
    # Both while the other one compiles.
    assert cache.find("known", lambda _: pytest.fail("it is compiled")) == "known"
    assert cache.find("new", lambda _: "new") == "new"
    assert found == []
    done.set()
    thread.join()
    assert found == ["slow"]


def test_a_failed_compilation_is_tried_again() -> None:
    cache: VariantCache[str] = VariantCache()

    def fails(_: Hashable | None) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.find(2, fails)
    assert len(cache) == 0
    assert cache.find(2, lambda _: "compiled") == "compiled"
    assert cache.find(2, fails) == "compiled"


def test_who_waited_for_a_compilation_that_failed_compiles() -> None:
    cache: VariantCache[str] = VariantCache()
    compiling, fail = threading.Event(), threading.Event()

    def fails(_: Hashable | None) -> str:
        compiling.set()
        assert fail.wait(30)
        raise ZeroDivisionError

    def first() -> None:
        with pytest.raises(ZeroDivisionError):
            cache.find(2, fails)

    found: list[str] = []
    threads = [
        threading.Thread(target=first),
        threading.Thread(target=lambda: found.append(cache.find(2, lambda _: "second"))),
    ]
    threads[0].start()
    assert compiling.wait(30)
    threads[1].start()
    fail.set()
    for thread in threads:
        thread.join()
    assert found == ["second"]
    assert cache.find(2, lambda _: pytest.fail("it is compiled")) == "second"
