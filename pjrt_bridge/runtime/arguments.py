"""The checks that stand between a call and the plugin.

A plugin compares byte sizes only: a wrong dtype, shape or layout of the right size runs and gives a
wrong answer. So every argument is compared with the program's signature first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pjrt_bridge.errors import SignatureMismatch
from pjrt_bridge.runtime.buffer import Buffer
from pjrt_bridge.runtime.device import Device
from pjrt_bridge.stablehlo.types import Parameter, Signature, TensorType

if TYPE_CHECKING:
    from pjrt_bridge.runtime.client import Client


class Arguments:
    """What an executable demands of its arguments.

    Attributes:
        name: of the executable, for messages.
        signature: parameters and results.
        client: where the arguments must live.
        donors: indices of the parameters that the program may consume.
    """

    def __init__(self, name: str, signature: Signature, client: Client) -> None:
        self.name = name
        self.signature = signature
        self.client = client
        self.donors = tuple(
            index
            for index, parameter in enumerate(signature.parameters)
            if parameter.donation != "kept"
        )

    def check_count(self, arguments: Sequence[object]) -> None:
        """Compare the number of arguments.

        Raises:
            SignatureMismatch: too few or too many.
        """
        expected = len(self.signature.parameters)
        if len(arguments) != expected:
            raise SignatureMismatch(
                f"executable {self.name!r}: found {len(arguments)} arguments, expected {expected}"
            )

    def check(self, buffers: Sequence[Buffer], device: Device) -> None:
        """Compare buffers with the parameters: type, shape, client, device, layout.

        Raises:
            SignatureMismatch: the first difference.
        """
        self.check_count(buffers)
        pairs = zip(buffers, self.signature.parameters, strict=True)
        for index, (buffer, parameter) in enumerate(pairs):
            if not isinstance(buffer, Buffer):
                raise self._mismatch(index, type(buffer).__name__, "Buffer (see Client.put)")
            found = buffer.type
            if found.dtype is not parameter.type.dtype or found.shape != parameter.shard_shape:
                expected = TensorType(parameter.shard_shape, parameter.type.dtype)
                raise self._mismatch(index, str(found), str(expected))
            if buffer.client is not self.client:
                raise self._mismatch(
                    index, f"a buffer of {buffer.client!r}", f"one of {self.client!r}"
                )
            if buffer.device is not device:
                raise self._mismatch(index, f"a buffer on {buffer.device!r}", f"one on {device!r}")
            if buffer.custom_layout is not None or parameter.layout is not None:
                self._check_layout(index, buffer, parameter)

    def _check_layout(self, index: int, buffer: Buffer, parameter: Parameter) -> None:
        if parameter.layout is None:
            if buffer.custom_layout is not None:
                raise self._mismatch(index, repr(buffer.layout), "the plugin's default layout")
        elif buffer.layout.minor_to_major != parameter.layout:
            order = ",".join(map(str, parameter.layout))
            raise self._mismatch(index, repr(buffer.layout), f"Layout({{{order}}})")

    def donation(
        self, lists: Sequence[Sequence[Buffer]], donate: Collection[int] | None
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Parameters to donate, and donors to keep.

        Args:
            lists: the arguments for each device.
            donate: what the caller allows; None means all that the program donates.

        Raises:
            SignatureMismatch: a parameter that the program does not donate, or a donated buffer
                that is also another argument.
        """
        if donate is None:
            donated = self.donors
        else:
            donated = tuple(sorted(set(donate)))
            unknown = sorted(set(donated) - set(self.donors))
            if unknown:
                raise SignatureMismatch(
                    f"executable {self.name!r} donates the arguments {list(self.donors)}; "
                    f"{unknown} cannot be donated"
                )
        for buffers in lists if donated else ():
            owners = [id(buffer) for buffer in buffers]
            for index in donated:
                if owners.count(owners[index]) > 1:
                    raise self._mismatch(
                        index, "a donated buffer that is passed twice", "a buffer of its own"
                    )
        return donated, [index for index in self.donors if index not in donated]

    def _mismatch(self, index: int, found: str, expected: str) -> SignatureMismatch:
        return SignatureMismatch(
            f"argument {index} of executable {self.name!r}: found {found}, expected {expected}"
        )
