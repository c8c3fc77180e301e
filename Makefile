# One command each: `make demo`, `make test`, `make lint`, `make bench`.
# The environment is made on first use; `make clean` removes it.

PYTHON ?= python3
TORCH ?= 2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JAX ?= .venv-jax/bin/python
BENCH ?=
SOURCES := build_native.py $(shell find pjrt_bridge plugins -name "*.[ch]" -o -name build_native.py)

XLA_VENV := .venv-torch-xla
XLA_READY := $(XLA_VENV)/.ready
XLA_PIP ?=

OTHERS := .plugins-of-others

.PHONY: demo test test-full test-torch-xla plugins-of-others coverage coverage-wide lint format bench docs wheels browser clean

demo: $(READY)
	$(BIN)/python -m examples.demo

# Hundreds of processes import the bridge: its bytecode is kept, whatever the environment says.
test test-full: export PYTHONDONTWRITEBYTECODE =

# Most of the time goes into compiling programs. Those that an earlier run has compiled are loaded:
# their keys hold all that their compilation depends on. `make test-full` compiles all of them.
test: export TEST_PROGRAMS = $(CURDIR)/build/test-programs

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-full: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

# PyTorch/XLA's exporter, whose last release needs PyTorch 2.9. XLA_PIP holds pip's options that
# lead to its CPU build, such as `--find-links FOLDER`, or PyTorch's own index of CPU builds.
test-torch-xla: $(XLA_READY)
	$(XLA_VENV)/bin/python -m pytest tests/torch_interop/export/test_torch_xla.py \
		tests/exported/test_torch_xla_bundle.py

# Builds of XLA's CPU plugin from other projects, which `make test-full` tests where they are.
plugins-of-others: $(READY)
	rm -rf $(OTHERS)
	$(BIN)/python -m pip install --quiet --no-deps --target $(OTHERS) \
		fastatomstruct-xla-cpu==2026.6.23 lammps-jax-pjrt-cpu==0.11.2

# Every operator of torch's database, what it refuses, and every model: three quarters of an hour on
# two cores.
coverage: $(READY)
	$(BIN)/python -m tests.opinfo --write
	$(BIN)/python -m tests.errors --write
	$(BIN)/python -m tests.models --write
	$(BIN)/python -m tests.coverage.needed
	$(BIN)/python -m tests.coverage

# Every element type, with more samples: hours. What ran is kept, and an interrupted run goes on.
coverage-wide: $(READY)
	mkdir -p build
	$(BIN)/python -m tests.opinfo --wide --write --journal build/opinfo-wide.jsonl
	$(BIN)/python -m tests.coverage

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# `make bench JAX=` goes without jax.jit; BENCH holds further options, see `--help` of the module.
bench: $(READY) $(JAX)
	$(BIN)/python -m benchmarks $(addprefix --jax ,$(JAX)) $(BENCH)

# The pages as a site, with a reference of the API, in build/site.
docs: $(READY)
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	$(BIN)/python -m mkdocs build --quiet --strict

# Source archives of all distributions, and the wheels that are built from these, in dist.
wheels: $(READY)
	rm -rf dist
	for project in . conformance plugins/*/; do $(BIN)/python -m build --outdir dist $$project || exit 1; done

# An environment of its own, with the version that fits the jaxlib here.
.venv-jax/bin/python: $(READY)
	$(PYTHON) -m venv .venv-jax
	.venv-jax/bin/pip install --quiet "jax==$$($(BIN)/python -c \
		'from importlib.metadata import version; print(version("jaxlib"))')"
	touch $@

# The pages that reports write are tested in headless Chromium.
browser:
	command -v chromium || (apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium)

# torch comes first and pinned: asked for by a range it would bring gigabytes of CUDA wheels.
$(READY): pyproject.toml conformance/pyproject.toml $(wildcard plugins/*/pyproject.toml) $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet -e ".[cpu,torch,dev]" -e conformance \
		-e plugins/cpu -e plugins/reference -e plugins/cuda -e plugins/tpu
	touch $@

# By its number alone torch would be the build that brings gigabytes of CUDA wheels; this one is
# either found or missed. Nothing after it asks for torch.
$(XLA_READY): pyproject.toml plugins/cpu/pyproject.toml $(SOURCES)
	test -x $(XLA_VENV)/bin/python || $(PYTHON) -m venv $(XLA_VENV)
	$(XLA_VENV)/bin/python -m pip install --quiet $(XLA_PIP) torch==2.9.0+cpu
	$(XLA_VENV)/bin/python -m pip install --quiet torch_xla==2.9.0
	$(XLA_VENV)/bin/python -m pip install --quiet -e ".[cpu]" -e plugins/cpu \
		hypothesis pytest pytest-timeout
	touch $@

clean:
	rm -rf $(VENV) $(XLA_VENV) $(OTHERS) .venv-jax build dist *.egg-info
