"""Programs for any accelerator under a launcher, which name devices by LOCAL_RANK."""

import socket

import pytest

from tests.torch_interop.distributed.running import outputs_of

SCRIPT = "tests.torch_interop.distributed.launched_script"


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("data_parallel", 2),
        pytest.param("backward_on_the_host_first", 2, marks=pytest.mark.slow),
        pytest.param("fully_sharded", 2, marks=pytest.mark.slow),
        pytest.param("plan_of_a_library", 2, marks=pytest.mark.slow),
    ],
)
def test_programs_name_devices_by_the_number_of_the_process(name: str, world: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    arguments = [[name, str(rank), str(world), port] for rank in range(world)]
    for output in outputs_of(SCRIPT, arguments, timeout=240):
        assert "well" in output.splitlines()
