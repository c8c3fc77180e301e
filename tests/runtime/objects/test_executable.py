"""Executables: results, the check of arguments, what they say about themselves."""

from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import (
    Closed,
    DataError,
    InvalidArgument,
    OptionError,
    PluginIncompatible,
    ProgramError,
    SignatureMismatch,
)
from pjrt_bridge.runtime import Client, CompileOptions, Executable
from pjrt_bridge.stablehlo.program.program import Program
from tests import programs
from tests.conftest import Census

ONES = np.ones(64, np.float32)


@pytest.fixture(scope="module")
def add(client: Client) -> Executable:
    return client.compile(programs.ADD)


@pytest.mark.parametrize("form", ["text", "artifact", "bytecode", "program"])
def test_programs_in_every_form(client: Client, form: str) -> None:
    program = Program.from_text(programs.ADD)
    forms: dict[str, Any] = {
        "text": programs.ADD,
        "artifact": program.portable_artifact(),
        "bytecode": program.bytecode(),
        "program": program,
    }
    (result,) = client.compile(forms[form])(ONES, ONES)
    assert (result.to_numpy() == 2).all()


def test_arguments_of_every_kind(add: Executable, client: Client) -> None:
    for other in (ONES, torch.ones(64), client.put(ONES), [1.0] * 64):
        if isinstance(other, list):
            other = np.array(other, np.float32)
        (result,) = add(ONES, other)
        assert (result.to_numpy() == 2).all()


def test_several_results(no_leaks: Census, client: Client) -> None:
    executable = client.compile(programs.TWO_RESULTS)
    negated, seven, same = executable(np.arange(4, dtype=np.float32), np.array([5, 6], np.int32))
    assert negated.to_numpy().tolist() == [0, -1, -2, -3]
    assert (seven.shape, seven.to_numpy()) == ((), 7)
    assert same.to_numpy().tolist() == [5, 6]
    assert [str(type) for type in executable.outputs] == ["f32[4]", "i32[]", "i32[2]"]


def test_no_arguments(client: Client) -> None:
    (result,) = client.compile(programs.CONSTANT)()
    assert result.to_numpy().tolist() == [3, 4]


def test_no_results(no_leaks: Census, client: Client) -> None:
    assert client.compile(programs.NOTHING)() == ()
    sink = client.compile(programs.SINK)
    assert sink(ONES) == ()
    outputs, event = sink.submit([client.put(ONES)])
    assert outputs == ()
    event.wait()
    event.close()


def test_submit(no_leaks: Census, add: Executable, client: Client) -> None:
    a = client.put(ONES)
    (result,), event = add.submit([a, a])
    event.wait()
    assert event.ready
    assert result.ready()
    assert (result.to_numpy() == 2).all()
    event.close()
    event.close()
    with pytest.raises(Closed):
        event.wait()


def test_the_result_of_one_is_the_argument_of_another(add: Executable, client: Client) -> None:
    value = client.put(ONES)
    for _ in range(10):
        (value,) = add.execute([value, value])
    assert (value.to_numpy() == 1024).all()


def test_what_an_executable_says(add: Executable, client: Client) -> None:
    assert add.name == "add"
    assert add.devices == client.devices
    assert not add.portable
    assert repr(add) == "<Executable 'add' (f32[64], f32[64]) -> (f32[64])>"
    cost = add.cost()
    assert cost["flops"] == 64
    assert cost["bytes accessed"] == 768
    stats = add.memory_stats()
    assert (stats.arguments, stats.outputs, stats.aliased) == (512, 256, 0)
    assert stats.generated_code >= 0
    assert stats.temporaries >= 0
    assert add.fingerprint() == client.compile(programs.ADD).fingerprint()


def test_memory_that_is_reused_counts_as_aliased(client: Client) -> None:
    assert client.compile(programs.ALIASED_ADD).memory_stats().aliased == 256


def test_closed(no_leaks: Census, client: Client) -> None:
    with client.compile(programs.ADD) as executable:
        (result,) = executable(ONES, ONES)
    executable.close()
    assert (result.to_numpy() == 2).all()
    for use in (
        lambda: executable(ONES, ONES),
        lambda: executable.submit([result, result]),
        executable.serialize,
        executable.cost,
        executable.memory_stats,
        executable.fingerprint,
    ):
        with pytest.raises(Closed, match="executable 'add' was closed"):
            use()


def test_closing_while_it_runs(no_leaks: Census, client: Client) -> None:
    executable = client.compile(programs.SLOW)
    (result,) = executable(np.ones((512, 512), np.float32))
    executable.close()
    assert (result.to_numpy() == 1).all()


# -- arguments that plugins would run, with a wrong answer or worse --------------------------------


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_arguments(add: Executable, client: Client, count: int) -> None:
    match = f"executable 'add': found {count} arguments, expected 2"
    with pytest.raises(SignatureMismatch, match=match):
        add.execute([client.put(ONES)] * count)
    with pytest.raises(SignatureMismatch, match=match):
        add(*[ONES] * count)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (np.ones(64, np.int32), r"i32\[64\]"),
        (np.ones(64, np.uint32), r"ui32\[64\]"),
        (np.ones((8, 8), np.float32), r"f32\[8,8\]"),
        (np.ones((64, 1), np.float32), r"f32\[64,1\]"),
        (np.ones(32, np.float64), r"f64\[32\]"),
        (np.float32(1), r"f32\[\]"),
        (np.ones(0, np.float32), r"f32\[0\]"),
    ],
)
def test_dtype_and_shape(add: Executable, wrong: Any, found: str) -> None:
    with pytest.raises(SignatureMismatch, match=rf"argument 1 .*found {found}, expected f32\[64\]"):
        add(ONES, wrong)


@pytest.mark.parametrize("wrong", [None, ONES, 0, "x", object()])
def test_what_is_no_buffer(add: Executable, client: Client, wrong: Any) -> None:
    with pytest.raises(SignatureMismatch, match=r"argument 1 .*expected Buffer \(see Client\.put"):
        add.execute([client.put(ONES), wrong])


def test_the_device(pair: Client) -> None:
    add = pair.compile(programs.ADD)
    there = pair.put(ONES, pair.devices[1])
    with pytest.raises(SignatureMismatch, match=r"found a buffer on <Device 1.*on <Device 0"):
        add.execute([pair.put(ONES), there])
    (result,) = add(ONES, there)
    assert result.device is pair.devices[0]


def test_the_client(add: Executable, pair: Client) -> None:
    with pytest.raises(SignatureMismatch, match="a buffer of <Client of 'cpu', 2 devices>"):
        add.execute([pair.put(ONES), pair.put(ONES)])


def test_a_bad_call_changes_nothing(no_leaks: Census, client: Client) -> None:
    executable = client.compile(programs.ALIASED_ADD)
    good = client.put(ONES, copy=True)
    with pytest.raises(SignatureMismatch):
        executable.execute([good, client.put(np.ones(64, np.int32))])
    assert (executable(good, ONES)[0].to_numpy() == 2).all()


# -- where a program runs --------------------------------------------------------------------------


def test_a_program_for_the_second_device(pair: Client) -> None:
    executable = pair.compile(programs.ADD, options=CompileOptions(device_assignment=[[1]]))
    assert executable.devices == pair.devices[1:]
    (result,) = executable(ONES, ONES)
    assert result.device is pair.devices[1]
    with pytest.raises(SignatureMismatch, match="compile with CompileOptions"):
        executable.execute([result, result], device=pair.devices[1])


def test_a_portable_program(client: Client, pair: Client) -> None:
    executable = pair.compile(programs.ADD, options=CompileOptions(portable=True))
    assert executable.portable
    for device in pair.devices:
        here = pair.put(ONES, device)
        (result,) = executable.execute([here, here], device=device)
        assert result.device is device
        assert (result.to_numpy() == 2).all()
    assert executable(ONES, ONES)[0].device is pair.devices[0]
    there = pair.put(ONES, pair.devices[1])
    with pytest.raises(SignatureMismatch, match="expected one on <Device 0"):
        executable.execute([there, there])


def test_a_portable_program_on_impossible_devices(client: Client, pair: Client) -> None:
    executable = pair.compile(programs.CONSTANT, options=CompileOptions(portable=True))
    assert executable.execute([], device=pair.devices[1])[0].device is pair.devices[1]
    for device in (client.devices[0], 0, "cpu"):
        with pytest.raises(DataError, match="is no device of"):
            executable.execute([], device=device)  # type: ignore[arg-type]


def test_shardings_mean_nothing_to_one_partition(client: Client) -> None:
    program = programs.elementwise(
        "tensor<64xf32>", attributes='{mhlo.sharding = "{devices=[2]0,1}"}'
    )
    executable = client.compile(program)
    assert (executable(ONES, ONES)[0].to_numpy() == 2).all()
    again = client.deserialize(executable.serialize())
    assert (again(ONES, ONES)[0].to_numpy() == 2).all()


# -- programs that cannot be compiled --------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "",
        b"",
        "module {",
        b"ML\xefR\x0d",
        "module {}",
        "module { func.func @other() { return } }",
        programs.identity("tensor<?xf32>"),
        programs.identity("tensor<4xf32>").replace("return %a", "stablehlo.unknown %a"),
        programs.identity("tensor<4x!quant.uniform<i8:f32, 1.0:0>>"),
    ],
)
def test_programs_that_are_none(client: Client, program: Any) -> None:
    with pytest.raises(ProgramError):
        client.compile(program)


def test_a_custom_call_that_nobody_knows(no_leaks: Census, client: Client) -> None:
    program = """
    module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @nobody(%a) {api_version = 4 : i32, backend_config = {}}
        : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> } }
    """
    with pytest.raises(Exception, match="nobody"):
        client.compile(program)


@pytest.mark.parametrize("options", [{}, {"num_replicas": 1}, 1, "portable"])
def test_options_that_are_none(client: Client, options: Any) -> None:
    with pytest.raises(OptionError, match="expected CompileOptions"):
        client.compile(programs.ADD, options=options)


def test_more_devices_than_there_are(pair: Client) -> None:
    for options in (
        CompileOptions(num_replicas=3),
        CompileOptions(num_partitions=3),
        CompileOptions(num_replicas=2, num_partitions=2),
        CompileOptions(num_replicas=1 << 20, num_partitions=1 << 20),
    ):
        with pytest.raises(OptionError, match="2 devices> has 2"):
            pair.compile(programs.ADD, options=options)


def test_devices_that_do_not_exist(pair: Client) -> None:
    with pytest.raises(InvalidArgument, match="device_id 7"):
        pair.compile(programs.ADD, options=CompileOptions(device_assignment=[[7]]))


@pytest.mark.parametrize(
    ("flag", "good", "bad"),
    [
        ("xla_cpu_prefer_vector_width", [512, "512"], ["abc", "", True, 1.5, 1 << 40]),
        ("xla_cpu_enable_fast_math", [True, "True"], ["abc", 1.5, 1, float("nan")]),
        ("xla_backend_optimization_level", [0, 3], ["abc", True, 1.5]),
        ("xla_no_such_flag", [], [1, True, "", 1.0]),
    ],
)
def test_flags(client: Client, flag: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        executable = client.compile(programs.ADD, options=CompileOptions(env={flag: value}))
        assert (executable(ONES, ONES)[0].to_numpy() == 2).all()
    for value in bad:
        with pytest.raises(InvalidArgument, match=flag):
            client.compile(programs.ADD, options=CompileOptions(env={flag: value}))


@pytest.mark.usefixtures("compiled_anew")
def test_a_plugin_with_another_idea_of_the_results(no_leaks: Census, client: Client) -> None:
    """The signature comes from the program, the results from the plugin: they must agree."""
    two = client.compile(programs.TWO_RESULTS)
    program = Program.from_text(programs.ADD)
    odd = Program(program.bytecode(), "odd", two.signature)
    match = "plugin 'cpu' returns 1 results, the program has 3"
    with pytest.raises(PluginIncompatible, match=match):
        client.compile(odd)
