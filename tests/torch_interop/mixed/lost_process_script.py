"""One rank of a test with two processes, of which one ends between two collective operations.

Usage: python -m tests.torch_interop.mixed.lost_process_script RANK FILE, where FILE is the meeting
point of the processes. Rank 0 prints the error that it gets.
"""

import sys
import traceback

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional


def function(x: Tensor) -> Tensor:
    whole = functional.all_reduce(x.sin(), "sum", dist.group.WORLD)
    return whole.cos()


def main() -> None:
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    run = torch.compile(function, backend="pjrt", fullgraph=True)
    run(torch.ones(4, 3))
    if rank == 0:
        try:
            run(torch.ones(4, 3))
        except RuntimeError:
            traceback.print_exc()


if __name__ == "__main__":
    main()
