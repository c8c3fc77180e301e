#!/bin/sh
# Everything that needs a GPU, on a machine with no more than Python: `tests/gpu/run_all.sh [WHEELS]
# [--only PART,...]`, from anywhere. WHEELS is a folder of wheels for what the machine lacks; one
# JSON and the logs are written to $OUT. `python -m tests.gpu --help` has the options.
cd "$(dirname "$0")/../.." && exec "${PYTHON:-python3}" -m tests.gpu "$@"
