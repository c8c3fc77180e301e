import gc
import resource
import threading

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, Parameter, Program, bindings
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from tests.counting import calls
from tests.stablehlo.helpers import program, tensor


def located(built: Program) -> str:
    module = bindings.parse(built.bytecode(), "test")
    return module.operation.get_asm(enable_debug_info=True)


def unknown(text: str) -> str:
    """How the printed module spells an unknown location at the end of a line."""
    alias = next(line for line in text.splitlines() if line.endswith("= loc(unknown)"))
    return f"loc({alias.split(' ')[0]})"


def test_values_know_their_type():
    builder = Builder([tensor(2, 3)])
    (x,) = builder.parameters
    assert (x.shape, x.dtype.name, x.rank, x.size) == ((2, 3), "float32", 2, 6)
    assert str(builder.transpose(x, (1, 0)).type) == "f32[3,2]"


def test_name_of_the_module():
    assert Builder(name="step").finish([]).name == "step"
    plain = Builder().finish([])
    assert plain.name == "main"
    assert plain.text.startswith("module {")


def test_parameters_can_be_returned_unused_and_repeated():
    built = program(lambda b, x, y: (x, x), tensor(2), tensor(3))
    a, b = evaluate(built, np.ones(2, np.float32), np.zeros(3, np.float32))
    np.testing.assert_array_equal(a, b)


def test_a_finished_builder_is_used_up():
    builder = Builder([tensor(2)])
    (x,) = builder.parameters
    builder.finish([x])
    with pytest.raises(ProgramError, match=r"stablehlo\.negate: this builder is finished"):
        builder.negate(x)
    with pytest.raises(ProgramError, match="finish: this builder is finished"):
        builder.finish([x])
    with (
        pytest.raises(ProgramError, match="this builder is finished"),
        builder.scratch([tensor(2)]) as (y,),
    ):
        builder.negate(y)


def test_values_of_another_builder_are_refused():
    (foreign,) = Builder([tensor(2)]).parameters
    builder = Builder([tensor(2)])
    with pytest.raises(ProgramError, match="belongs to another builder"):
        builder.add(builder.parameters[0], foreign)
    with pytest.raises(ProgramError, match="finish: operand 0"):
        builder.finish([foreign])
    assert builder.finish(builder.parameters).text.count("stablehlo") == 0


def test_donation_attributes():
    builder = Builder([tensor(2), tensor(2), tensor(3)])
    x, y, z = builder.parameters
    builder.donate(0)
    builder.donate(1, 0)
    built = builder.finish([builder.add(x, y), z])
    assert "jax.buffer_donor = true" in built.text
    assert "tf.aliasing_output = 0 : i32" in built.text
    kinds = [(p.donation, p.alias) for p in built.signature.parameters]
    assert kinds == [("may", None), ("must", 0), ("kept", None)]


def test_a_donation_takes_the_place_of_the_one_before():
    builder = Builder([tensor(2), Parameter(tensor(2), donation="must", alias=1)])
    builder.donate(0, 0)
    builder.donate(1)
    builder.donate(0, 1)
    builder.donate(1, 0)
    with pytest.raises(ProgramError, match="output 1 takes parameter 0 already"):
        builder.donate(1, 1)
    built = builder.finish(builder.parameters)
    assert [p.alias for p in built.signature.parameters] == [1, 0]


def test_parameter_attributes():
    described = Parameter(
        tensor(4, 6),
        layout=(0, 1),
        donation="must",
        alias=0,
        sharding="{devices=[2,1]<=[2]}",
        shard_shape=(2, 6),
    )
    builder = Builder([described])
    built = builder.finish(builder.parameters)
    assert built.signature.parameters == (described,)


@pytest.mark.parametrize(
    ("donations", "needle"),
    [
        ([(5, None)], "parameter 5 of 3 does not exist"),
        ([(-1, None)], "parameter -1 of 3 does not exist"),
        ([(0, 0), (1, 0)], "output 0 takes parameter 0 already"),
        ([(0, 7)], "output 7, but there are 2 outputs"),
        ([(0, -1)], "output -1, but there are 2 outputs"),
        ([(2, 0)], r"parameter 2 \(f32\[3\]\) is donated to output 0, .* f32\[2\]"),
    ],
)
def test_impossible_donations(donations, needle):
    builder = Builder([tensor(2), tensor(2), tensor(3)])

    def donate():
        for parameter, output in donations:
            builder.donate(parameter, output)
        builder.finish(builder.parameters[:2])

    with pytest.raises(ProgramError, match=needle):
        donate()


def test_location_is_recorded_and_restored():
    builder = Builder([tensor(2)])
    (x,) = builder.parameters
    with builder.location("model.py", 42, "layer.0"):
        y = builder.negate(x)
        with builder.location("model.py", 7):
            y = builder.abs(y)
        y = builder.exp(y)
    text = located(builder.finish([builder.log(y)]))
    assert '"layer.0"' in text
    assert '"model.py":42' in text
    assert '"model.py":7' in text
    outside = next(line for line in text.splitlines() if "stablehlo.log " in line)
    assert outside.endswith(unknown(text))


def test_scratch_is_dropped():
    builder = Builder([tensor(2)])
    (x,) = builder.parameters
    with builder.scratch([tensor(5), tensor(5)]) as (u, v):
        total = builder.erf(builder.reduce_sum(builder.add(u, v), (0,)))
        assert str(total.type) == "f32[]"
        with pytest.raises(ProgramError, match="out of scope"):
            builder.negate(x)
    for stale in (u, total):
        with pytest.raises(ProgramError, match="out of scope"):
            builder.negate(stale)
    text = builder.finish([builder.negate(x)]).text
    assert "stablehlo.negate" in text
    assert "add" not in text


def test_scratch_survives_errors_and_nesting():
    builder = Builder([tensor(2)])
    (x,) = builder.parameters

    def trial():
        with builder.scratch([tensor(2)]) as (u,), builder.location("x.py", 1):
            builder.negate(u)
            builder.reshape(u, (3,))

    for _ in range(3):
        with pytest.raises(ProgramError, match=r"stablehlo\.reshape"):
            trial()
    with builder.scratch([tensor(2)]) as (outer,), builder.scratch([tensor(2)]) as (inner,):
        builder.add(inner, inner)
        with pytest.raises(ProgramError, match="out of scope"):
            builder.add(outer, inner)
    built = builder.finish([builder.abs(x)])
    assert "x.py" not in located(built)
    assert built.text.count("stablehlo.") == 1


def test_finish_inside_a_scratch_or_a_body():
    builder = Builder([tensor(2)])
    (x,) = builder.parameters
    with (
        builder.scratch([tensor(2)]) as outputs,
        pytest.raises(ProgramError, match="inside the body"),
    ):
        builder.finish(outputs)
    with pytest.raises(ProgramError, match="inside the body"):
        builder.while_([x], lambda c: builder.finish(c), lambda c: c)
    assert builder.finish([x]).text.count("stablehlo") == 0


def test_chlo_does_not_leave_the_builder():
    built = program(
        lambda b, x: b.erf(b.while_([x], lambda c: never(b), lambda c: [b.asin(c[0])])[0]),
        tensor(2),
    )
    assert "chlo" not in built.text
    assert built.portable_artifact("1.0.0")


def never(b):
    return b.full((), False, "bool")


def test_a_sharding_that_does_not_fit_is_told_by_the_signature():
    builder = Builder([Parameter(tensor(4), sharding="{devices=[2,2]<=[4]}")])
    built = builder.finish(builder.parameters)
    with pytest.raises(ProgramError, match="tiles 2 dimensions, the tensor has 1"):
        built.signature


def test_builders_of_many_threads():
    results: dict[int, str] = {}
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(5):
                builder = Builder([tensor(4)], name=f"t{seed}")
                (value,) = builder.parameters
                for step in range(30):
                    value = builder.add(value, builder.full((4,), seed + step, "float32"))
                built = builder.finish([builder.erf(value)])
                built.serialize_for(None)
                results[seed] = built.text
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(results.values())) == 8


def test_each_operation_is_as_much_work_as_the_one_before():
    def build(operations: int) -> None:
        builder = Builder([tensor(4)])
        (value,) = builder.parameters
        for _ in range(operations):
            value = builder.add(value, value)
        assert builder.finish([value]).text.count("stablehlo.add") == operations

    build(1)
    assert calls(lambda: build(1000)) < 10.5 * calls(lambda: build(100))


def test_contexts_die_with_their_builder():
    big = np.random.default_rng(0).standard_normal(1 << 20)

    def build(offset: int) -> None:
        builder = Builder()
        builder.finish([builder.constant(big + offset)])

    build(0)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for offset in range(1, 13):
        build(offset)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    # Twelve constants of 8 MiB would be 96 MiB if their contexts lived on.
    assert growth < 6 * big.nbytes
