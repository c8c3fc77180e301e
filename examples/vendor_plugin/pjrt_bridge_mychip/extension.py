"""An extension of the PJRT C API that mychip alone has, and the accessor of its callers.

The declaration is that of the C structs; sizes, offsets and checks follow from it:

    struct MyChip_Thermometer_Extension {       struct MyChip_Thermometer_Read_Args {
      PJRT_Extension_Base base;                   size_t struct_size;
      MyChip_Thermometer_Read* read;              PJRT_Extension_Base* extension_start;
    };                                            PJRT_Device* device;
                                                  float celsius;  // out
                                                };
"""

from __future__ import annotations

from pjrt_bridge.abi.extension_structs import extension
from pjrt_bridge.extensions import Accessor
from pjrt_bridge.runtime import Device


class Thermometer(Accessor):
    """`client.extension(Thermometer).read(device)`."""

    # Numbers of types are not given out for private use: take one far from those in the header.
    TABLE = extension("""Thermometer 9100 (v1) MyChip_Thermometer_Extension
read MyChip_Thermometer_Read_Args: base, ptr device, out f32 celsius""")

    def read(self, device: Device) -> float:
        """Temperature of a device in degrees Celsius."""
        return float(self.call("read", device=device.pointer).celsius)
