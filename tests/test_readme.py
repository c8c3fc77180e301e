"""What the README and the pages of docs/ say is what happens: programs and commands are run."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from pjrt_bridge.cli import main
from tests import forked

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
PAGES = [TEXT, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]
BLOCKS = [block for page in PAGES for block in re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)]
PROGRAMS = [code for language, code in BLOCKS if language == "python"]
# Some are on several pages.
COMMANDS = list(
    dict.fromkeys(
        line.split("#")[0].strip()
        for language, code in BLOCKS
        if language == "sh"
        for line in code.splitlines()
        if line.startswith("pjrt-bridge")
    )
)
# Every document, with those whose programs are run elsewhere or need what is not here.
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in (".", "docs", "conformance", "examples/*", "frameworks/*", "plugins/*")
    for path in sorted(ROOT.glob(f"{folder}/*.md"))
    if path.name != "CHANGELOG.md"
}
# Importing one takes seconds; the README's own programs and commands do so themselves.
FRAMEWORKS = {
    "tensorflow": "tensorflow",
    "transformers": "transformers.models.llama.modeling_llama",
    "torch": forked.TORCH,
}


# Programs may use the host, which is said by a warning; nothing else may warn.
STRICT = """
import runpy, sys, warnings
from pjrt_bridge.errors import HostFallbackWarning
warnings.simplefilter("error")
warnings.simplefilter("ignore", HostFallbackWarning)
# Torch's own, while it traces an optimizer.
warnings.filterwarnings("ignore", ".torch.jit.script_method. is deprecated", DeprecationWarning)
warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
# Lightning's own.
warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
warnings.filterwarnings("ignore", ".*(num_workers|number of training batches)", UserWarning)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user could be who has the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(command: list[str], cwd: Path = ROOT) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_forked(imported: Sequence[str], source: str, arguments: list[str], cwd: Path) -> str:
    done = forked.parent(*imported).run(source, arguments, timeout=240, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_documents_programs_and_commands() -> None:
    assert {"README.md", "docs/planning.md", "plugins/tpu/README.md"} <= DOCUMENTS.keys()
    assert len(PROGRAMS) >= 4
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs(program: str, folder: Path) -> None:
    (folder / "program.py").write_text(program)
    imported = next(
        (one for one in FRAMEWORKS if re.search(rf"^(import|from) {one}\b", program, re.MULTILINE)),
        None,
    )
    if program in TEXT:
        run([sys.executable, "-c", STRICT, "program.py"], folder)
    else:
        first = forked.PLAIN if imported is None else [FRAMEWORKS[imported]]
        run_forked(first, STRICT, ["program.py"], folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, folder: Path) -> None:
    words = command.split()
    if command in TEXT:
        assert run(words, folder).strip()
    else:
        script = "from pjrt_bridge.cli.main import main; main()"
        first = [forked.TORCH] if words[1] == "explain" else forked.PLAIN
        assert run_forked(first, script, words[1:], folder).strip()


def test_the_stablehlo_program_prints_its_result() -> None:
    program = next(code for code in PROGRAMS if "stablehlo.multiply" in code)
    assert "[0. 1. 4. 9.]" in run([sys.executable, "-c", program])


def test_the_demo_runs() -> None:
    shown = run([sys.executable, "-m", "examples.demo", "--quick", "--no-inductor", "--rounds=2"])
    assert "PJRT API 0." in shown
    assert shown.count("segments") == 3
    assert "three training steps" in shown


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in re.findall(r"(?:^|`)make ((?:[a-z][\w-]* ?)+)", DOCUMENTS[document], re.MULTILINE):
        for target in line.split():
            assert re.search(rf"^{target}( [\w-]+)*:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_that_are_run_exist(document: str) -> None:
    for name in re.findall(r"python -m ((?:examples|benchmarks|tests)[\w.]*)", DOCUMENTS[document]):
        assert find_spec(name.rstrip(".")), name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_have_the_options_that_are_named(document: str) -> None:
    """Also of commands that are not run, as they need hardware or minutes."""
    commands = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]
    lines = re.findall(r"pjrt-bridge ([a-z]+)((?: [^`#\n]*)?)", DOCUMENTS[document])
    for name, rest in lines:
        assert name in commands, name
        options = {option for one in commands[name].params for option in one.opts}
        for option in re.findall(r"(?<= )--?[a-z][\w-]*", rest):
            assert option in {*options, "--help"}, f"{name} {option}"


def test_torch_is_a_floor_in_the_package_and_pinned_in_the_set_up() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["torch"] == ["torch>=2.13"]
    makefile = (ROOT / "Makefile").read_text()
    assert "TORCH ?= 2.13.0\n" in makefile
    assert "install --quiet torch==$(TORCH)\n" in makefile
