"""Which sizes calls are padded to: laws for any sequence of sizes."""

import math
import threading
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.mixed.padded_sizes import (
    COMPILES,
    FREELY,
    OFTEN,
    OWN,
    SMALL,
    UNITS,
    WASTE,
    PaddedSizes,
    round_up,
)

WORK: dict[str, Callable[[tuple[int, ...]], float]] = {
    "launch": lambda sizes: 1e6 + sum(sizes),
    "linear": lambda sizes: 1000.0 * math.prod(sizes),
    "square": lambda sizes: 10.0 * math.prod(sizes) ** 2,
    "rows and columns": lambda sizes: 5e4 + 300.0 * sizes[0] + sizes[-1] ** 2,
}
"""What calls may cost."""

SIZES = st.integers(1, 4096)


@given(st.sampled_from(sorted(WORK)), st.lists(SIZES, min_size=1, max_size=3), st.data())
def test_rounded_sizes_hold_a_call_and_cost_little_more(
    name: str, given_sizes: list[int], data: st.DataObject
) -> None:
    work, sizes = WORK[name], tuple(given_sizes)
    positions = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    made = round_up(sizes, sorted(positions), work)
    for at, (one, other) in enumerate(zip(made, sizes, strict=True)):
        assert one >= other if at in positions else one == other
        assert one <= max(2.5 * other, SMALL)
    assert work(made) <= WASTE * work(sizes)
    for at in positions:
        for other in positions:
            if sizes[at] == sizes[other]:
                assert made[at] == made[other]


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(sorted(WORK)),
    st.integers(4, 4096),
    st.randoms(use_true_random=False),
    st.integers(1, 2),
)
def test_programs_grow_with_the_logarithm_of_the_range(
    name: str, most: int, random: object, dims: int
) -> None:
    work = WORK[name]
    policy = PaddedSizes(work, range(dims))
    for _ in range(400):
        sizes = tuple(random.randint(1, most) for _ in range(dims))  # type: ignore[attr-defined]
        chosen = policy.choose(sizes)
        if chosen is None:
            assert sizes == policy._first
            continue
        assert all(a >= b for a, b in zip(chosen, sizes, strict=True))
        # What a call wastes is worth no program.
        extra = len(policy.made) - FREELY
        assert work(chosen) - work(sizes) <= max(COMPILES * 2.0**extra, WASTE * work(sizes))
    largest = work((most,) * dims)
    # Each program that is made for what was wasted doubles what may be.
    by_waste = max(0.0, math.log2(max(largest / COMPILES, 1)))
    by_calls = math.log2(400)
    beyond_all = dims * math.log(most, 1.19)
    assert len(policy.made) <= FREELY + by_waste + by_calls + beyond_all


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("most", [64, 512, 2048])
def test_five_hundred_calls_of_any_sizes_need_few_programs(dims: int, most: int) -> None:
    def work(sizes: tuple[int, ...]) -> float:
        return 1e5 + 5e3 * sum(sizes) + 8.0 * sum(a * b for a in sizes for b in sizes)

    for seed in range(3):
        random = Random(seed)
        policy = PaddedSizes(work, range(dims))
        for _ in range(500):
            policy.choose(tuple(random.randint(2, most) for _ in range(dims)))
        assert len(policy.made) + policy._first_stays <= 10


@pytest.mark.parametrize("work", [2e3, 1e5])
def test_small_models_of_batches_and_lengths_need_fewer_programs(work: float) -> None:
    for seed in range(5):
        random = Random(seed)
        policy = PaddedSizes(lambda sizes: 1e5 + work * sizes[0] * sizes[1], [0, 1], compiles=1e9)
        for _ in range(500):
            policy.choose((random.randint(2, 33), random.randint(2, 128)))
        assert len(policy.made) <= 7


def test_sizes_that_grow_get_programs_twice_as_large() -> None:
    policy = PaddedSizes(WORK["launch"], [0])
    for size in range(2, 1000):
        policy.choose((size,))
    assert [made for (made,) in policy.made] == [64, 128, 256, 512, 1024]


def test_a_program_that_takes_long_to_make_has_to_save_more() -> None:
    counts = []
    for compiles in (COMPILES, 30 * COMPILES):
        random = Random(0)
        policy = PaddedSizes(lambda sizes: 1e5 * sizes[0], [0], compiles=compiles)
        for _ in range(500):
            policy.choose((random.randint(2, 1000),))
        counts.append(len(policy.made))
    assert counts[0] > counts[1]


def test_sizes_that_operators_divide_stay_divisible() -> None:
    policy = PaddedSizes(WORK["linear"], [0], lambda sizes: sizes[0] % 3 == 0)
    policy.choose((3,))
    for size in (9, 30, 99, 300, 303, 3000):
        (made,) = policy.choose((size,)) or ()
        assert made % 3 == 0
        assert made >= size
    never = PaddedSizes(WORK["linear"], [0], lambda sizes: sizes[0] % (UNITS + 1) == 0)
    never.choose((3,))
    assert never.choose((30,)) == round_up((30,), [0], WORK["linear"])


def heavy(sizes: tuple[int, ...]) -> float:
    """The work of calls each of which takes long, beside which a compilation is nothing."""
    return 1e5 * sizes[0]


def test_first_sizes_that_are_dear_to_pad_stay() -> None:
    policy = PaddedSizes(heavy, [0])
    assert policy.choose((100,)) is None
    assert policy.choose((101,)) != (101,)
    assert policy.choose((100,)) is None
    assert policy.made == [policy.choose((101,))]


def test_first_sizes_that_are_known_to_change_are_padded_like_others() -> None:
    policy = PaddedSizes(heavy, [0], changing=True)
    first = policy.choose((100,))
    assert first == round_up((100,), [0], heavy) > (100,)
    assert [policy.choose((size,)) for size in (101, *first, 100)] == [first] * 3
    assert policy.made == [first]


def test_first_sizes_that_are_cheap_to_pad_share_a_program_with_the_next() -> None:
    policy = PaddedSizes(WORK["launch"], [0])
    first = policy.choose((7,))
    assert first is not None
    assert first > (7,)
    assert [policy.choose((size,)) for size in (8, *first, 7)] == [first] * 3
    assert policy.made == [first]
    # Should no others come often, these get a program of their own, too.
    deserving = [policy.deserves_own((7,)) for _ in range(OFTEN)]
    assert deserving == [False] * (OFTEN - 1) + [True]


def test_a_program_serves_all_that_it_wastes_little_of() -> None:
    policy = PaddedSizes(WORK["linear"], [0])
    policy.choose((3,))
    (made,) = policy.choose((100,)) or ()
    assert {policy.choose((size,)) for size in range(math.ceil(made / WASTE), made + 1)} == {
        (made,)
    }


def test_sizes_that_are_not_padded_need_programs_of_their_own() -> None:
    policy = PaddedSizes(WORK["linear"], [0])
    policy.choose((3, 3))
    for other in (7, 8):
        assert (policy.choose((100, other)) or ())[1] == other
    assert len(policy.made) == 2


def test_sizes_that_are_not_padded_and_go_on_to_change_are_left_to_others() -> None:
    policy = PaddedSizes(WORK["linear"], [0])
    chosen = [policy.choose((size, 1000 + size)) for size in range(1, 400)]
    assert len(policy.made) == FREELY == sum(made is not None for made in chosen)
    # What comes often is made after all, and serves all that differ in padding.
    found = [policy.choose((10 + call % 3, 3000)) for call in range(20)]
    assert found[0] is None
    assert found[-1] == policy.made[-1]
    assert len(policy.made) == FREELY + 1


def test_what_is_missed_often_is_made_after_all() -> None:
    policy = PaddedSizes(heavy, [0])
    policy.choose((3,))
    for size in (1000, 16):
        policy.choose((size,))
    count = len(policy.made)
    assert count == FREELY
    assert policy.choose((380,)) == (1024,)
    for _ in range(10):
        policy.choose((380,))
    assert policy.choose((380,)) == (384,)
    assert len(policy.made) == count + 1


def test_what_calls_of_different_sizes_waste_is_worth_a_program_together() -> None:
    policy = PaddedSizes(heavy, [0])
    for size in (3, 1000, 16):
        policy.choose((size,))
    assert policy.made == [(1024,), (16,)]
    sizes = [300, 700, 250, 200, 350, 400, 330, 280]
    chosen = [policy.choose((size,)) for size in sizes]
    assert chosen[0] == (1024,)
    # The last has a program that serves most of the others, too, which waste less than before.
    (made,) = policy.made[2:]
    assert made[0] < 1024
    assert chosen[-1] == made
    assert sum(size <= made[0] for size in sizes) >= 4


def test_what_no_program_serves_gets_one_that_serves_all_before() -> None:
    policy = PaddedSizes(WORK["launch"], [0, 1])
    policy.choose((3, 3, 5))
    for size in (10_000, 100_000, 1_000_000):
        policy.choose((size, 2, 5))
    assert len(policy.made) == 4
    rows, columns, other = policy.choose((2, 500_000, 7)) or ()
    assert rows <= SMALL
    assert columns >= 500_000
    assert other == 7
    rows, columns, other = policy.choose((2, 500_000, 5)) or ()
    assert rows >= 1_000_000
    assert columns >= 500_000
    assert other == 5


def test_sizes_that_come_very_often_get_programs_of_their_own() -> None:
    policy = PaddedSizes(heavy, [0])
    sizes = [(3,), *((size,) for size in range(257, 257 + 2 * OWN))]
    assert policy.choose((257,)) is None
    for item in sizes:
        policy.choose(item)
    deserving = [[policy.deserves_own(item) for item in sizes] for _ in range(OFTEN + 1)]
    assert not any(map(any, deserving[: OFTEN - 1]))
    assert sum(deserving[-1]) == OWN
    # The first sizes are compiled as they are, and what wastes nothing needs no other program.
    assert not deserving[-1][1]
    full = policy.choose((450,)) or ()
    assert policy.choose(full) == full
    assert not any(policy.deserves_own(full) for _ in range(OFTEN + 1))


def test_a_program_that_could_not_be_made_is_forgotten() -> None:
    policy = PaddedSizes(WORK["linear"], [0])
    policy.choose((3,))
    chosen = policy.choose((100,))
    policy.forget(chosen)
    policy.forget(chosen)
    assert policy.made == []


@pytest.mark.parametrize("count", [4])
def test_threads_agree(count: int) -> None:
    policy = PaddedSizes(WORK["linear"], [0])
    policy.choose((3,))
    found: list[tuple[int, ...]] = []
    threads = [
        threading.Thread(target=lambda: found.append(policy.choose((100,)))) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(policy.made) == 1


def test_sizes_that_follow_from_others_do() -> None:
    policy = PaddedSizes(
        WORK["linear"],
        [0, 1],
        lambda sizes: sizes[0] + 1 == sizes[1],
        following=[1],
        settle=lambda sizes: (sizes[0], sizes[0] + 1),
    )
    made = set()
    for size in Random(0).sample(range(2, 500), 100):
        chosen = policy.choose((size, size + 1))
        if chosen is not None:
            made.add(chosen)
            assert chosen[0] >= size
            assert chosen[1] == chosen[0] + 1
    assert 0 < len(made) <= 12
