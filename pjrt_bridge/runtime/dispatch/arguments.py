"""Checks of the arguments of an execution.

A plugin compares byte sizes only: a wrong dtype, shape or layout of the right size runs and gives a
wrong answer. So every argument is compared with the program's signature first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from pjrt_bridge.errors import SignatureMismatch
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.stablehlo.types import Signature, TensorType
from pjrt_bridge.wrong_arguments import wrong


class Arguments:
    """Checks of the arguments of an executable.

    Args:
        name: of the executable, for messages.
        signature: parameters and results.
        client: where the arguments must live.
        sharded: the program runs on shards, as its shardings say; else they mean nothing.

    Attributes:
        types: shape on one device and element type of each parameter.
        layouts: minor-to-major order of each parameter where it is not the plugin's default.
        donors: indices of the parameters that the program may consume.
    """

    def __init__(
        self, name: str, signature: Signature, client: ClientCore, *, sharded: bool
    ) -> None:
        self.name = name
        self.client = client
        self.types = tuple(
            TensorType(parameter.shard_shape, parameter.type.dtype) if sharded else parameter.type
            for parameter in signature.parameters
        )
        self.layouts = tuple(
            client.custom_layout(parameter.layout) for parameter in signature.parameters
        )
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
        expected = len(self.types)
        if len(arguments) != expected:
            raise SignatureMismatch(
                f"executable {self.name!r}: found {len(arguments)} arguments, expected {expected}"
            )

    def check(self, buffers: Sequence[Buffer], device: Device) -> None:
        """Compare buffers with the parameters: type, shape, client, device, layout.

        Raises:
            SignatureMismatch: the first difference.
        """
        if not isinstance(buffers, (list, tuple)):
            expected = "a list or tuple of Buffers"
            raise SignatureMismatch(wrong(f"executable {self.name!r}", buffers, expected))
        if len(buffers) != len(self.types):
            self.check_count(buffers)
        for index, buffer in enumerate(buffers):
            if not self.fits(index, buffer, device):
                self._look_closer(index, buffer, device)

    def fits(self, index: int, buffer: object, device: Device) -> bool:
        """Whether it is a buffer that a parameter takes, and lies as nearly all do."""
        return (
            isinstance(buffer, Buffer)
            and buffer.type == self.types[index]
            and buffer.device is device
            and buffer.custom_layout is self.layouts[index] is None
            and not buffer.dynamic
        )

    def _look_closer(self, index: int, buffer: Buffer, device: Device) -> None:
        if not isinstance(buffer, Buffer):
            raise self._mismatch(index, type(buffer).__name__, "Buffer (see Client.put)")
        if buffer.type != self.types[index]:
            raise self._mismatch(index, str(buffer.type), str(self.types[index]))
        if buffer.client is not self.client:
            raise self._mismatch(index, f"a buffer of {buffer.client!r}", f"one of {self.client!r}")
        if buffer.device is not device:
            raise self._mismatch(index, f"a buffer on {buffer.device!r}", f"one on {device!r}")
        if buffer.dynamic:
            raise self._mismatch(
                index,
                f"a buffer of the true shape {buffer.true_shape()}",
                f"one of the static shape {buffer.shape} (copy_to makes true shapes static)",
            )
        expected = self.layouts[index]
        if expected is None:
            if buffer.custom_layout is not None:
                raise self._mismatch(
                    index,
                    repr(buffer.layout),
                    "the plugin's default layout (copy_to makes it the default)",
                )
        elif buffer.layout.minor_to_major != expected:
            raise self._mismatch(index, repr(buffer.layout), repr(Layout(expected)))

    def donation(
        self, lists: Sequence[Sequence[Buffer]], donate: Collection[int] | None
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Indices of parameters to donate, and of donors to keep.

        A buffer of which there are views is kept. The plugin counts these views, too; some donate
        nothing then, others refuse the execution (XLA on GPUs).

        Args:
            lists: the arguments for each device.
            donate: what the caller allows; None means all that the program donates.

        Raises:
            SignatureMismatch: a parameter that the program does not donate, or a donated buffer
                that is also another argument.
        """
        if not self.donors and donate is None:
            return (), ()
        donated = self.donors
        if donate is not None:
            if not isinstance(donate, (list, tuple, set, frozenset, range)):
                where = f"executable {self.name!r}: donate"
                raise SignatureMismatch(wrong(where, donate, "a list or set of indices"))
            allowed, possible = set(donate), set(self.donors)
            unknown = [index for index in donate if index not in possible]
            if unknown:
                raise SignatureMismatch(
                    f"executable {self.name!r} donates the arguments {list(self.donors)}; "
                    f"{unknown} cannot be donated"
                )
            if allowed != possible:
                donated = tuple(index for index in self.donors if index in allowed)
        for buffers in lists if donated else ():
            if len(set(map(id, buffers))) < len(buffers):
                self._check_passed_once(buffers, donated)
        if any(buffers[index].handle.is_viewed for buffers in lists for index in donated):
            donated = tuple(
                index for index in donated if not any(row[index].handle.is_viewed for row in lists)
            )
        kept = set(self.donors).difference(donated)
        return donated, tuple(index for index in self.donors if index in kept) if kept else ()

    def _check_passed_once(self, buffers: Sequence[Buffer], donated: Sequence[int]) -> None:
        times = Counter(map(id, buffers))
        for index in donated:
            if times[id(buffers[index])] > 1:
                raise self._mismatch(
                    index, "a donated buffer that is passed twice", "a buffer of its own"
                )

    def _mismatch(self, index: int, found: str, expected: str) -> SignatureMismatch:
        return SignatureMismatch(
            f"argument {index} of executable {self.name!r}: found {found}, expected {expected}"
        )
