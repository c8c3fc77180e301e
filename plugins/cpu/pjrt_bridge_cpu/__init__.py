"""The XLA CPU plugin for pjrt-bridge: one hook that finds the library of `xla-cpu-pjrt`."""

from pjrt_bridge.registry import PluginSpec, hookimpl, wheel_library


@hookimpl
def pjrt_bridge_plugins() -> PluginSpec:
    """The plugin `cpu`, with one device unless a client asks for more.

    Raises:
        PluginNotFound: the wheel that holds the library is not installed.
    """
    return PluginSpec(
        name="cpu",
        library=wheel_library("xla-cpu-pjrt", "xla_cpu_pjrt.so"),
        options={"cpu_device_count": 1},
        # The library accepts unknown names in silence; this is the one that it reads.
        option_types={"cpu_device_count": int},
        # Otherwise each client logs its options to standard error.
        environment={"TF_CPP_MIN_LOG_LEVEL": "1"},
        description="XLA on the host's processor",
    )
