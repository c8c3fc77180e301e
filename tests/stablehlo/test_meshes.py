"""Shardings as texts, of which some end the process."""

from __future__ import annotations

import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.runtime import Client


def test_operations_that_are_divided_into_no_tiles_are_refused(client: Client) -> None:
    text = """
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.add %a, %a {mhlo.sharding = "{DEVICES}"} : tensor<8xf32>
      return %0 : tensor<8xf32>
    }"""
    client.compile(text.replace("DEVICES", "devices=[1]<=[1]")).close()
    for devices in ("devices=[0]<=[0]", "devices=[1, 00]0", "de\\76ices = [0,2]<=[0]"):
        with pytest.raises(ProgramError, match="expected one tile or more in each dimension"):
            client.compile(text.replace("DEVICES", devices))
