"""The caller's side of the plugin's own extension: `client.extension(Statistics).live()`."""

from __future__ import annotations

from pjrt_bridge.extensions.base import Accessor
from pjrt_bridge_reference.extensions.statistics import TABLE


class Statistics(Accessor):
    """Statistics that the reference plugin keeps for its callers."""

    TABLE = TABLE

    def live(self) -> tuple[int, int]:
        """Objects, and errors, that were handed out and not destroyed."""
        found = self.call("live")
        return int(found.objects), int(found.errors)
