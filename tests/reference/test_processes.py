"""Clients of the reference plugin that span processes: each test is two or three real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pjrt_bridge.stablehlo.interpret import interpretable
from tests import forked
from tests.reference.ranks import run_ranks

pytestmark = pytest.mark.skipif(interpretable.threads() < 2, reason="each device needs a thread")


def test_three_processes_see_all_devices_and_any_two_compute_together(tmp_path: Path) -> None:
    found = run_ranks(
        """
client = reference(store, device_count=2 if RANK == 1 else 1)
again = reference(store, device_count=2 if RANK == 1 else 1)
ring = [(0, 1), (2, 3), (3, 0)]
sums = [run(client, compiled(client, all_reduce(), pair), 10) for pair in ring
        if any(each.id in pair for each in client.devices)]
local = client.compile(IDENTITY)
print(json.dumps({
    "process": client.process_index,
    "own": [each.id for each in client.devices],
    "all": [(each.id, each.process_index) for each in client.all_devices],
    "hardware": [each.local_hardware_id for each in client.devices],
    "same": client is again,
    "sums": sums,
    "default": [each.id for each in local.devices],
    "one device": float(local(np.float32(RANK))[0].to_numpy()),
}))
""",
        3,
        tmp_path,
    )
    everything = [[0, 0], [1, 1], [2, 1], [3, 2]]
    owned = [[0], [1, 2], [3]]
    for rank, each in enumerate(found):
        assert each["process"] == rank
        assert each["own"] == owned[rank]
        assert each["all"] == everything
        assert each["hardware"] == list(range(len(owned[rank])))
        assert each["same"]
        assert each["default"] == owned[rank][:1]
        assert each["one device"] == rank
    three = [[[21.0] * 3], [[25.0] * 3], [[23.0] * 3]]
    assert [each["sums"] for each in found] == [
        [three[0], three[2]],
        [three[0], three[1]],
        [three[1], three[2]],
    ]


@pytest.mark.skipif(interpretable.threads() < 3, reason="each device needs a thread")
def test_three_processes_compute_together(tmp_path: Path) -> None:
    found = run_ranks(
        """
client = reference(store)
executable = compiled(client, all_reduce("[[0, 1, 2]]", "1x3"), (0, 1, 2))
print(json.dumps(run(client, executable, 10)))
""",
        3,
        tmp_path,
    )
    assert found == [[[33.0] * 3]] * 3


def test_collective_operations(tmp_path: Path) -> None:
    found = run_ranks(
        """
client = reference(store)
gather = program('''%0 = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64,
    replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>}
    : (tensor<3xf32>) -> tensor<6xf32>''', "6xf32")
permute = program('''%0 = "stablehlo.collective_permute"(%x) {
    source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}
    : (tensor<3xf32>) -> tensor<3xf32>''')
made = [compiled(client, text) for text in (all_reduce(), gather, permute)]
loaded = client.deserialize(made[0].serialize()) if RANK else made[0]
made.append(loaded)
# More runs than the store has places for, with results that are arguments again.
value, = made[0](np.ones(3, np.float32))
for _ in range(5):
    value, = made[0].execute([value])
print(json.dumps([[run(client, each, 10)[0] for each in made], value.to_numpy().tolist()]))
""",
        2,
        tmp_path,
    )
    gathered = [11.0] * 3 + [10.0] * 3
    for rank, (results, repeated) in enumerate(found):
        assert results == [[21.0] * 3, gathered, [11.0 - rank] * 3, [21.0] * 3]
        assert repeated == [64.0] * 3


def test_a_new_client_reads_nothing_of_the_one_before(tmp_path: Path) -> None:
    found = run_ranks(
        """
sums = []
for value in range(3):
    client = reference(store, device_count=1)
    sums.append(run(client, compiled(client, all_reduce()), value)[0][0])
    client.close()
print(json.dumps(sums))
""",
        2,
        tmp_path,
    )
    assert found == [[1.0, 3.0, 5.0]] * 2


def test_one_process_started_anew_meets_those_that_lost_it(tmp_path: Path) -> None:
    found = run_ranks(
        """
COUNT, life = 2, RANK
RANK = min(RANK, 1)
if life == 2:
    store.get("died", 20)
else:
    meet("start", 0, 1)
client = reference(store, timeout=1 if life == 0 else 15)
executable = compiled(client, all_reduce())
result = run(client, executable, 5 if life == 2 else 1)
if life == 1:
    store.put("died", b"")
    os.kill(os.getpid(), signal.SIGKILL)
text = None
if life == 0:
    text, _ = failure(lambda: run(client, executable, 1))
    client.close()
    client = reference(store, timeout=15)
    result = run(client, compiled(client, all_reduce()), 5)
print(json.dumps([text, result]))
""",
        3,
        tmp_path,
        dying=[1],
    )
    assert "of process 1: found nothing within 1 s" in found[0][0]
    assert found[0][1] == found[2][1] == [[11.0] * 3]


def test_what_is_not_a_number_of_processes(tmp_path: Path) -> None:
    found = run_ranks(
        """
from pjrt_bridge.registry import client
texts = [failure(lambda: reference(store, node_id=2))[0],
         failure(lambda: client("reference", num_nodes=2))[0],
         failure(lambda: reference(store, timeout=0))[0],
         failure(lambda: client("cpu", processes=Processes(0, 2, store)))[0],
         failure(lambda: client("reference", processes="slurm"))[0],
         failure(lambda: client("reference", processes=3))[0],
         failure(lambda: client("reference", processes=Processes(RANK, 3 - RANK, store)))[0]]
print(json.dumps(texts))
""",
        2,
        tmp_path,
    )
    for texts in found:
        assert "node_id is 2, expected 0 to 1" in texts[0]
        assert "kv_get_callback is NULL" in texts[1]
        assert "process_timeout_ms must be positive" in texts[2]
        assert "plugin 'cpu' has no clients that span processes" in texts[3]
        assert "found 'slurm', expected one of" in texts[4]
        assert "processes: found 3, expected a Processes or the name of one" in texts[5]
    assert "told of" in found[0][6] + found[1][6]


def test_torchs_store(tmp_path: Path) -> None:
    found = run_ranks(
        """
import socket
import torch.distributed as dist
from pjrt_bridge.torch_interop.processes import torchrun
place = os.path.join(FOLDER, "port")
if RANK == 0:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        store.put("port", str(free.getsockname()[1]).encode())
missing = failure(torchrun)[0]
os.environ |= {"RANK": str(RANK), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": store.get("port", 20).decode(), "LOCAL_RANK": str(RANK)}
processes = torchrun(timeout=20)
from pjrt_bridge.registry import client
made = client("reference", processes=processes)
result = run(made, compiled(made, all_reduce()), 1)
dist.init_process_group("gloo")
import torch
total = torch.ones(1)
dist.all_reduce(total)
same = client("reference", processes=torchrun(timeout=20)) is made
made.close()
dist.barrier()
dist.destroy_process_group()
print(json.dumps([missing, result, total.item(), same, processes.local_rank]))
""",
        2,
        tmp_path,
        imported=(*forked.PLAIN, forked.TORCH),
    )
    for rank, each in enumerate(found):
        assert "has no RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT" in each[0]
        assert each[1:] == [[[3.0] * 3], 2.0, True, rank]
