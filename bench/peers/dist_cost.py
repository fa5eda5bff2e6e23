# SPDX-License-Identifier: Apache-2.0
"""Host cost of DTensor where the arithmetic is next to nothing, in a world of which only this rank
exists.

    build/venv/bin/python bench/peers/dist_cost.py --threads 1
"""
import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from common import emit, median_us


def report(name, time_us):
    emit(name=name, shape=[8, 8], dtype="float32", time_us=time_us)


def first_calls(call, count=40):
    """Median of calls that were never made before, in microseconds."""
    times = []
    for i in range(count):
        start = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e6


def measure():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def part(t, *placements):
        return DTensor.from_local(t, mesh, placements, run_check=False)

    a, b = torch.randn(4, 4), torch.randn(4, 4)
    x, y = part(a, Shard(0), Shard(1)), part(b, Shard(0), Shard(1))
    p, q = part(a, Shard(0), Replicate()), part(b, Replicate(), Shard(1))
    with torch.no_grad():
        report("add_local", median_us(lambda: a + b))
        report("add_distributed", median_us(lambda: x + y))
        report("matmul_local", median_us(lambda: a @ b))
        report("matmul_distributed", median_us(lambda: p @ q))
        report("redistribute_no_op", median_us(lambda: x.redistribute(mesh, [Shard(0), Shard(1)])))
    w = a.clone().requires_grad_()
    v = part(a.clone(), Shard(0), Shard(1)).detach().requires_grad_()
    report("add_local_recorded", median_us(lambda: w + b))
    report("add_distributed_recorded", median_us(lambda: v + y))
    with torch.no_grad():
        fresh = [part(torch.randn(4, 4 + i), Shard(0), Shard(1)) for i in range(40)]
        report("plan_miss", first_calls(lambda i: fresh[i] + fresh[i]))
        whole = [part(torch.randn(8 + 8 * i, 8), Replicate(), Replicate()) for i in range(40)]
        report("redistribute_first",
               first_calls(lambda i: whole[i].redistribute(mesh, [Shard(0), Shard(1)])))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    emit(name="about", torch=torch.__version__)
    measure()


if __name__ == "__main__":
    main()
