"""PJRT_Executable: a compiled program, not tied to devices that are there.

An interpreter compiles by reading and checking: what a program says that cannot be done is found
here, and not when it runs.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cached_property
from typing import Any

from pjrt_bridge.abi.implementation_objects import Keep
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Parameter, Program, Result, Signature
from pjrt_bridge.stablehlo.cost import Cost, estimate
from pjrt_bridge.stablehlo.interpret import interpreter
from pjrt_bridge_reference import serialized
from pjrt_bridge_reference.caller_arguments import invalid, raw, struct, text, unimplemented
from pjrt_bridge_reference.layout import Order, row_major
from pjrt_bridge_reference.memory import DEVICE
from pjrt_bridge_reference.options import Options, read_options
from pjrt_bridge_reference.shardy import divided_by_shardy, without_shardy
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.timeline import span
from pjrt_bridge_reference.topology import Topology
from pjrt_bridge_reference.version import PLATFORM_VERSION

SLOTS = Slots()

_MAGIC = b"PJRTREFX"

_MOST_WORK = 1_000_000
"""Operations on elements of a program with collectives: about three seconds of the interpreter,
which ends the process if one device waits longer than that for another."""


class Executable:
    """A program that the interpreter can run, with its options.

    Attributes:
        program: the program.
        options: compile options.
        options_bytes: the message that they were read from.
        signature: parameters and results.
        aliases: for each result the parameter whose memory it takes, or None.
        donors: parameters that an execution consumes.
        parallel: the program speaks to other replicas or partitions, so they run together.

    Raises:
        Status: INVALID_ARGUMENT or UNIMPLEMENTED.
    """

    def __init__(self, program: Program, options_bytes: bytes) -> None:
        self.options: Options = read_options(options_bytes)
        self.options_bytes = options_bytes
        self.program = program
        try:
            self.signature: Signature = program.signature
            self.parallel = interpreter.has_collectives(program)
        except ProgramError as error:
            raise invalid(str(error)) from None
        if self.options.partitions > 1:
            self._check_shardings()
        self._check(here=False)
        self.donors = tuple(
            index
            for index, parameter in enumerate(self.signature.parameters)
            if parameter.donation != "kept"
        )
        self.aliases = _aliases(self.signature)
        self.keep = Keep()

    def check_here(self) -> None:
        """Refuse what this machine cannot run.

        Raises:
            Status: UNIMPLEMENTED; more devices that connect to each other than it has cores, or
                more work than one may do while another waits.
        """
        self._check(here=True)
        if self.parallel and self.options.devices > 1:
            self._check_work()

    def _check(self, *, here: bool) -> None:
        processes = self.options.devices if self.parallel else None
        try:
            interpreter.check(self.program, processes=processes, here=here)
        except ProgramError as error:
            raise unimplemented(str(error)) from None

    def _check_shardings(self) -> None:
        # Shardy's are gone; a program with others would have to be divided first.
        values: list[Parameter | Result] = [*self.signature.parameters, *self.signature.results]
        for value in values:
            if value.sharding is not None:
                raise unimplemented(
                    f"the sharding {value.sharding!r} of {value.type}: this plugin divides "
                    "programs by Shardy alone (use_shardy_partitioner)"
                )

    def _check_work(self) -> None:
        work = self._estimate.flops
        if work > _MOST_WORK:
            raise unimplemented(
                f"collective operations in a program of {work:.0f} operations on elements: the "
                f"interpreter may give up waiting, {_MOST_WORK} are safe"
            )

    @cached_property
    def fingerprint(self) -> tuple[int, int]:
        """Address and size of what is equal for equal programs, options and versions."""
        parts = [self.program.fingerprint.encode(), self.options_bytes, PLATFORM_VERSION.encode()]
        return self.keep.text(hashlib.sha256(b"\0".join(parts)).hexdigest())

    @cached_property
    def name(self) -> tuple[int, int]:
        """Address and size of the program's name."""
        return self.keep.text(self.program.name)

    @cached_property
    def _estimate(self) -> Cost:
        return estimate(self.program)

    @cached_property
    def cost(self) -> tuple[int, int]:
        """Address and length of the cost properties."""
        found = self._estimate
        return self.keep.named_values(
            {
                "flops": found.flops,
                "bytes accessed": found.bytes_accessed,
                "operations": float(found.operations),
            }
        )

    @property
    def temporaries(self) -> int:
        """Bytes between arguments and results, by the same estimate."""
        return self._estimate.temporaries

    @cached_property
    def output_types(self) -> int:
        """Address of the element types of the results."""
        return self.keep.int32s([result.type.dtype.code for result in self.signature.results])

    @cached_property
    def output_dims(self) -> tuple[int, int]:
        """Addresses of the results' dimensions in a row, and of their ranks."""
        shapes = [result.type.shape for result in self.signature.results]
        return (
            self.keep.int64s([size for shape in shapes for size in shape]),
            self.keep.int64s([len(shape) for shape in shapes]),
        )

    @cached_property
    def output_memory_kinds(self) -> tuple[int, int]:
        """Addresses of the memory kinds of the results, and of their lengths."""
        return self.keep.texts([DEVICE] * len(self.signature.results))

    def serialize(self) -> bytes:
        """The executable in a form that later versions of the plugin can read, too."""
        return serialized.pack(_MAGIC, self.program.portable_artifact(), self.options_bytes)


def layout_of(value: Parameter | Result) -> Order:
    """The order of a parameter or result in memory: what the program asks for, else row-major."""
    return row_major(value.type.rank) if value.layout is None else value.layout


def _aliases(signature: Signature) -> tuple[int | None, ...]:
    """For each result the donated parameter that lends its memory."""
    found: list[int | None] = [None] * len(signature.results)
    for index, parameter in enumerate(signature.parameters):
        if parameter.alias is None:
            continue
        if not 0 <= parameter.alias < len(found):
            raise invalid(
                f"parameter {index} aliases result {parameter.alias}; there are {len(found)}"
            )
        result = signature.results[parameter.alias]
        if result.type != parameter.type:
            raise invalid(
                f"parameter {index}, {parameter.type}, cannot alias result {parameter.alias}, "
                f"{result.type}"
            )
        if found[parameter.alias] is not None:
            raise invalid(f"two parameters alias result {parameter.alias}")
        found[parameter.alias] = index
    # A parameter that may be donated goes where it fits.
    for index, parameter in enumerate(signature.parameters):
        if parameter.donation == "may":
            for place, result in enumerate(signature.results):
                if found[place] is None and result.type == parameter.type:
                    found[place] = index
                    break
    return tuple(found)


def compile_program(program: int | None, options: bytes) -> Executable:
    """Compile the PJRT_Program at an address.

    Raises:
        Status: INVALID_ARGUMENT or UNIMPLEMENTED.
    """
    given = struct("PJRT_Program", program)
    kind = text(given.format, given.format_size, "format")
    if kind != "mlir":
        raise unimplemented(f"a program in the format {kind!r}; this plugin reads 'mlir'")
    code = raw(given.code, given.code_size, "code")
    with span("compiler", "compile"):
        try:
            parsed = Program.parse(code)
            # The interpreter knows nothing of CHLO; an artifact has none of it.
            if b"chlo" in parsed.bytecode():
                parsed = Program.from_portable_artifact(parsed.portable_artifact())
            chosen = read_options(options)
            if chosen.partitions == 1:
                parsed = without_shardy(parsed)
            elif chosen.shardy:
                parsed = divided_by_shardy(parsed, chosen.partitions)
        except ProgramError as error:
            raise invalid(str(error)) from None
        return Executable(parsed, options)


def deserialize(data: bytes, options: bytes | None) -> Executable:
    """Read what `Executable.serialize` wrote; `options` replace those in it.

    Raises:
        Status: INVALID_ARGUMENT.
    """
    artifact, kept = serialized.unpack(_MAGIC, data, "serialized_executable", parts=2)
    try:
        program = Program.from_portable_artifact(artifact)
    except ProgramError as error:
        raise invalid(f"serialized_executable: {error}") from None
    return Executable(program, kept if options is None else options)


def _executable(args: Any) -> Executable:
    return OBJECTS.get(args.executable, Executable)


@SLOTS.implements("Compile")
def _compile(args: Any) -> None:
    topology = OBJECTS.get(args.topology, Topology)
    options = raw(args.compile_options, args.compile_options_size, "compile_options")
    made = compile_program(args.program, options)
    if made.options.devices > len(topology.descriptions):
        raise invalid(
            f"the program needs {made.options.devices} devices, the topology has "
            f"{len(topology.descriptions)}"
        )
    args.executable = OBJECTS.add(made)


@SLOTS.implements("Executable_Destroy")
def _destroy(args: Any) -> None:
    if args.executable:
        OBJECTS.remove(args.executable, Executable)


@SLOTS.implements("Executable_Name")
def _name(args: Any) -> None:
    args.executable_name, args.executable_name_size = _executable(args).name


@SLOTS.implements("Executable_NumReplicas")
def _num_replicas(args: Any) -> None:
    args.num_replicas = _executable(args).options.replicas


@SLOTS.implements("Executable_NumPartitions")
def _num_partitions(args: Any) -> None:
    args.num_partitions = _executable(args).options.partitions


@SLOTS.implements("Executable_NumOutputs")
def _num_outputs(args: Any) -> None:
    args.num_outputs = len(_executable(args).signature.results)


@SLOTS.implements("Executable_SizeOfGeneratedCodeInBytes")
def _size_of_generated_code_in_bytes(args: Any) -> None:
    args.size_in_bytes = len(_executable(args).program.bytecode())


@SLOTS.implements("Executable_GetCostAnalysis")
def _get_cost_analysis(args: Any) -> None:
    args.properties, args.num_properties = _executable(args).cost


@SLOTS.implements("Executable_OutputElementTypes")
def _output_element_types(args: Any) -> None:
    executable = _executable(args)
    args.output_types = executable.output_types
    args.num_output_types = len(executable.signature.results)


@SLOTS.implements("Executable_OutputDimensions")
def _output_dimensions(args: Any) -> None:
    executable = _executable(args)
    # The header does not say so, but callers do not set the number: they read it.
    args.num_outputs = len(executable.signature.results)
    args.dims, args.dim_sizes = executable.output_dims


@SLOTS.implements("Executable_OutputMemoryKinds")
def _output_memory_kinds(args: Any) -> None:
    executable = _executable(args)
    args.num_outputs = len(executable.signature.results)
    args.memory_kinds, args.memory_kind_sizes = executable.output_memory_kinds


@SLOTS.implements("Executable_OptimizedProgram")
def _optimized_program(args: Any) -> None:
    executable = _executable(args)
    program = struct("PJRT_Program", args.program)
    code = executable.program.bytecode()
    program.format, program.format_size = executable.keep.text("mlir")
    if not program.code:
        program.code_size = len(code)
        return
    if program.code_size < len(code):
        raise invalid(f"code_size is {program.code_size}, the program has {len(code)} bytes")
    ctypes.memmove(program.code, code, len(code))
    program.code_size = len(code)


@SLOTS.implements("Executable_Serialize")
def _serialize(args: Any) -> None:
    blob = serialized.Blob(_executable(args).serialize())
    args.serialized_bytes, args.serialized_bytes_size = blob.text
    args.serialized_executable = OBJECTS.add(blob)
    args.serialized_executable_deleter = serialized.DELETER


@SLOTS.implements("Executable_Fingerprint")
def _fingerprint(args: Any) -> None:
    found = _executable(args).fingerprint
    args.executable_fingerprint, args.executable_fingerprint_size = found


@SLOTS.implements("Executable_GetCompiledMemoryStats")
def _get_compiled_memory_stats(args: Any) -> None:
    executable = _executable(args)
    signature = executable.signature
    arguments = sum(parameter.type.nbytes for parameter in signature.parameters)
    outputs = sum(result.type.nbytes for result in signature.results)
    aliased = sum(
        result.type.nbytes
        for result, alias in zip(signature.results, executable.aliases, strict=True)
        if alias is not None
    )
    args.generated_code_size_in_bytes = len(executable.program.bytecode())
    args.argument_size_in_bytes = arguments
    args.output_size_in_bytes = outputs
    args.alias_size_in_bytes = aliased
    args.temp_size_in_bytes = executable.temporaries
    args.host_generated_code_size_in_bytes = args.host_argument_size_in_bytes = 0
    args.host_output_size_in_bytes = args.host_alias_size_in_bytes = 0
    args.host_temp_size_in_bytes = 0
    args.peak_memory_in_bytes = arguments + outputs - aliased
