import os
import subprocess
import sys

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Program, bindings
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from tests.stablehlo.helpers import program, tensor

TEXT = """
module @demo {
  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""
SHARDY = """
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
      -> tensor<4xf32> {
    return %a : tensor<4xf32>
  }
}
"""


@pytest.fixture
def built():
    return program(lambda b, x: b.tanh(b.add(x, b.constant([1.0, 2.0], "float32"))), tensor(2))


def same(a: Program, b: Program) -> bool:
    x = np.array([0.25, -3.0], np.float32)
    return (
        a.text == b.text
        and a.signature == b.signature
        and np.array_equal(evaluate(a, x), evaluate(b, x))
    )


def test_import_is_lazy():
    script = (
        "import sys, pjrt_bridge.stablehlo as s; assert 'jaxlib' not in sys.modules;"
        f"p = s.Program.from_text({TEXT!r}); assert p.name == 'demo';"
        "assert 'jaxlib' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_missing_jaxlib_says_what_to_install():
    script = (
        "import sys; sys.modules['jaxlib'] = None\n"
        "import pjrt_bridge.stablehlo as s\n"
        "from pjrt_bridge.errors import ProgramError\n"
        "try: s.Builder()\n"
        "except ProgramError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install jaxlib" in done.stdout, done.stderr


def test_round_trips(built):
    from_text = Program.from_text(built.text)
    from_bytecode = Program.from_bytecode(built.bytecode())
    from_artifact = Program.from_portable_artifact(built.portable_artifact())
    for other in (from_text, from_bytecode, from_artifact):
        assert same(built, other)
    assert from_text.fingerprint == from_bytecode.fingerprint == built.fingerprint
    assert Program.from_bytecode(from_bytecode.bytecode()).bytecode() == from_bytecode.bytecode()


def test_parse_decides_by_content(built):
    forms = (
        built.text,
        built.text.encode(),
        built.bytecode(),
        built.portable_artifact(),
        built.portable_artifact("1.0.0"),
    )
    for content in forms:
        assert same(built, Program.parse(content))


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc", ".stablehlo", ".vhlo"])
def test_files(built, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    built.save(path)
    assert same(built, Program.from_file(path))
    content = path.read_bytes()
    assert content.startswith(b"ML\xefR") == (suffix != ".mlir")
    assert (b"StableHLO_v" in content[:20]) == (suffix in (".stablehlo", ".vhlo"))


def test_files_that_cannot_be(built, tmp_path):
    with pytest.raises(ProgramError, match=r"suffix '.onnx' .* none of .mlir"):
        built.save(tmp_path / "model.onnx")
    with pytest.raises(ProgramError, match=r"cannot write .*No such file"):
        built.save(tmp_path / "nowhere" / "model.mlir")
    with pytest.raises(ProgramError, match=r"cannot read .*No such file"):
        Program.from_file(tmp_path / "missing.mlir")
    broken = tmp_path / "broken.mlir"
    broken.write_text("module {")
    with pytest.raises(ProgramError, match=r"broken\.mlir: StableHLO text: error"):
        Program.from_file(broken)
    with pytest.raises(ProgramError, match="neither a regular file nor a pipe"):
        Program.from_file("/dev/zero")
    os.truncate(broken, 1 << 40)
    with pytest.raises(ProgramError, match="more than 4294967296 bytes"):
        Program.from_file(broken)


def test_a_program_comes_through_a_pipe(built, tmp_path):
    built.save(tmp_path / "x.mlir")
    read, write = os.pipe()
    os.write(write, (tmp_path / "x.mlir").read_bytes())
    os.close(write)
    assert same(built, Program.from_file(f"/dev/fd/{read}"))
    os.close(read)


@pytest.mark.parametrize("version", ["0.9.0", "1.0.0", "1.8.0", "current"])
def test_down_versioning(built, version):
    wanted = bindings.current_version() if version == "current" else version
    artifact = built.portable_artifact(wanted)
    assert f"StableHLO_v{wanted}\0".encode() in artifact[:40]
    assert same(built, Program.from_portable_artifact(artifact))


@pytest.mark.parametrize(
    ("version", "needle"),
    [
        ("0.1.0", "0.1.0 is less than minimum supported"),
        ("99.0.0", "99.0.0 is greater than current"),
        ("latest", "'latest': expected the form 1.8.0"),
        ("1.8", "'1.8': expected the form 1.8.0"),
        ("", "'': expected the form 1.8.0"),
    ],
)
def test_impossible_versions(built, version, needle):
    with pytest.raises(ProgramError, match=needle):
        built.portable_artifact(version)


def test_a_version_that_lacks_a_feature():
    newer = program(lambda b, x: b.tan(x), tensor(2))
    with pytest.raises(ProgramError, match=r"StableHLO '1.0.0'.*tan"):
        newer.portable_artifact("1.0.0")
    assert b"StableHLO_v1.4.0" in newer.portable_artifact("1.4.0")
    # Unknown readers get the oldest version that has the feature.
    assert Program.parse(newer.serialize_for(None)).text == newer.text


def test_serialize_for_takes_the_older_version(built):
    assert b"StableHLO_v1.8.0\0" in built.serialize_for("1.8.0")
    current = f"StableHLO_v{bindings.current_version()}\0".encode()
    assert current in built.serialize_for("99.0.0")
    oldest = f"StableHLO_v{bindings.minimum_version()}\0".encode()
    assert oldest in built.serialize_for(None)
    for nonsense in ("new", "1.x.0", "1.8", "-1.0.0"):
        with pytest.raises(ProgramError, match=r"expected the form 1.8.0"):
            built.serialize_for(nonsense)


def test_chlo_is_decomposed_in_artifacts():
    text = TEXT.replace(
        "stablehlo.add %arg0, %arg0 : tensor<2xf32>",
        "chlo.erf %arg0 : tensor<2xf32> -> tensor<2xf32>",
    )
    parsed = Program.from_text(text)
    assert "chlo.erf" in parsed.text
    back = Program.from_portable_artifact(parsed.portable_artifact("1.0.0"))
    assert "chlo" not in back.text


@pytest.mark.parametrize(
    ("element", "kind"),
    [
        ("i1", "UNSIGNED"),
        ("i4", "SIGNED"),
        ("i32", "SIGNED"),
        ("ui8", "UNSIGNED"),
        ("bf16", "FLOAT"),
        ("f8E4M3FN", "FLOAT"),
        ("complex<f32>", "FLOAT"),
    ],
)
def test_comparisons_state_their_type_in_artifacts(element, kind):
    operands = f"(tensor<2x{element}>, tensor<2x{element}>) -> tensor<2xi1>"
    parsed = Program.from_text(f"""
        func.func @main(%a: tensor<2x{element}>) -> tensor<2xi1> {{
          %0 = stablehlo.compare EQ, %a, %a : {operands}
          return %0 : tensor<2xi1>
        }}""")
    assert kind not in parsed.text
    back = Program.from_portable_artifact(parsed.portable_artifact("1.0.0"))
    assert f"EQ, %arg0, %arg0, {kind} :" in back.text


def test_an_order_of_its_own_survives_an_artifact():
    parsed = program(lambda b, x: b.compare(x, b.negate(x), "LT", total_order=True), tensor(2))
    assert "TOTALORDER" in Program.parse(parsed.portable_artifact()).text


def test_shardy_survives_an_artifact():
    parsed = Program.from_text(SHARDY)
    back = Program.parse(parsed.portable_artifact("1.8.0"))
    assert back.text == parsed.text
    assert back.signature.parameters[0].shard_shape == (2,)


def test_layouts_are_attributes():
    donating = Program.from_text(TEXT.replace("xf32>)", "xf32> {jax.buffer_donor = true})"))
    changed = donating.with_layouts({0: (0,)}, {0: "auto"})
    (parameter,), (result,) = changed.signature.parameters, changed.signature.results
    assert (parameter.layout, parameter.donation, result.layout) == ((0,), "may", None)
    assert 'mhlo.layout_mode = "auto"' in changed.text
    assert "layout_mode" not in donating.text
    back = changed.with_layouts({0: None}, {0: None})
    assert "layout_mode" not in back.text
    assert back.signature == donating.signature


@pytest.mark.parametrize(
    ("parameters", "results", "needle"),
    [
        ({1: (0,)}, {}, "no parameter 1; it has 1"),
        ({}, {-1: (0,)}, "no result -1; it has 1"),
        ({0: (0, 1)}, {}, "no permutation of 1"),
        ({0: "auto"}, {}, "'auto' lets the compiler choose"),
    ],
)
def test_layouts_that_a_program_cannot_have(parameters, results, needle):
    with pytest.raises(ProgramError, match=needle):
        Program.from_text(TEXT).with_layouts(parameters, results)


def test_locations_do_not_change_the_fingerprint():
    shifted = Program.from_text("\n\n" + TEXT)
    assert shifted.bytecode() != Program.from_text(TEXT).bytecode()
    assert shifted.fingerprint == Program.from_text(TEXT).fingerprint
    other = Program.from_text(TEXT.replace("stablehlo.add", "stablehlo.multiply"))
    assert other.fingerprint != shifted.fingerprint


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        ("", "no public function 'main'"),
        ("module {}", "functions found: none"),
        ("func.func @other() { return }", "functions found: other"),
        ("func.func private @main() -> ()", "functions found: private main"),
        ("module { func.func", "StableHLO text: error"),
        ('"unknown.op"() : () -> ()', "unregistered"),
        (TEXT.replace("%arg0, %arg0", "%arg0, %nope"), "use of undeclared SSA value"),
        (TEXT.replace("return %0", "return %arg0, %0"), "error"),
        (b"\xff\xfe\x00", "neither MLIR bytecode nor text"),
        (b"ML\xefR\x01", "MLIR bytecode: the producer's name has no end at byte 5 of 5"),
        (b"ML\xefR\rStableHLO_v1.0.0\0\x01", "portable artifact: .*"),
    ],
)
def test_content_that_is_no_program(content, needle, capfd):
    with pytest.raises(ProgramError, match=needle):
        Program.parse(content)
    assert capfd.readouterr().err == ""


def test_truncated_and_mistaken_forms(built, capfd):
    artifact = built.portable_artifact()
    for cut in (20, 60, len(artifact) - 5):
        with pytest.raises(ProgramError, match="portable artifact"):
            Program.parse(artifact[:cut])
    with pytest.raises(ProgramError, match="MLIR bytecode: must start with"):
        Program.from_bytecode(built.text.encode())
    for wrong in (built.bytecode(), b"", built.text.encode()):
        with pytest.raises(ProgramError, match="name 'StableHLO_v' as its producer"):
            Program.from_portable_artifact(wrong)
    assert capfd.readouterr().err == ""


def test_repr(built):
    assert repr(built) == f"Program('main', {len(built.bytecode())} bytes)"


def test_custom_calls_are_known_by_their_targets(built):
    text = """
    func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @one(%a) : (tensor<4xf32>) -> tensor<4xf32>
      %1 = stablehlo.custom_call @two(%0) : (tensor<4xf32>) -> tensor<4xf32>
      %2 = stablehlo.custom_call @one(%1) : (tensor<4xf32>) -> tensor<4xf32>
      return %2 : tensor<4xf32>
    }
    """
    assert Program.from_text(text).custom_calls == {"one", "two"}
    assert built.custom_calls == frozenset()


def test_a_tuple_counts_as_the_results_that_it_holds():
    program = Program.from_text("""
    func.func @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %0 = stablehlo.custom_call @Qr(%a)
          : (tensor<4x4xf32>) -> tuple<tensor<4x4xf32>, tensor<4xf32>>
      %1 = stablehlo.get_tuple_element %0[0]
          : (tuple<tensor<4x4xf32>, tensor<4xf32>>) -> tensor<4x4xf32>
      %2:2 = stablehlo.custom_call @Qr(%1) : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>)
      return %2#0 : tensor<4x4xf32>
    }""")
    assert program.call_forms() == {("Qr", 1, 2)}


def test_large_values_of_loops_count():
    program = Program.from_text("""
    func.func @main(%a: tensor<256x256xf32>, %b: tensor<256x256xi1>) -> tensor<256x256xf32> {
      %c = stablehlo.constant dense<1.0> : tensor<256x256xf32>
      %0 = stablehlo.dot_general %a, %c, contracting_dims = [1] x [0]
          : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
      %1 = stablehlo.tanh %0 : tensor<256x256xf32>
      %2 = stablehlo.not %b : tensor<256x256xi1>
      %3 = stablehlo.convert %1 : (tensor<256x256xf32>) -> tensor<256x256xf64>
      %4 = stablehlo.slice %1 [0:2, 0:2] : (tensor<256x256xf32>) -> tensor<2x2xf32>
      return %1 : tensor<256x256xf32>
    }""")
    assert program.loops() == (256 * 256 * 4, 256 * 256 * 8)
