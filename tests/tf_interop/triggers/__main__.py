"""What could kill the process, and bad input, one function each.

`python -m tests.tf_interop.triggers NAME ...` runs the named ones in turn and writes what became of
each: a line `begin NAME`, and a line `end NAME` with `ok` or the error in JSON. Whoever reads that
knows from a missing end which one the process died of.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings

import pytest
import tensorflow as tf

from pjrt_bridge import errors
from tests.tf_interop.triggers import calls, memory, types, variables  # noqa: F401
from tests.tf_interop.triggers.registry import TRIGGERS


def main() -> None:
    """Run the named triggers in turn."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", errors.HostFallbackWarning)
    for name in sys.argv[1:]:
        print("begin", name, flush=True)
        try:
            TRIGGERS[name]()
        except (Exception, pytest.fail.Exception):
            print("end", name, json.dumps(traceback.format_exc()), flush=True)
        else:
            print("end", name, "ok", flush=True)


if __name__ == "__main__":
    main()
