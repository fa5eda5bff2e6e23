# SPDX-License-Identifier: Apache-2.0
"""Collectives between two ranks: Tessera (threads, processes) beside raw MPI and PyTorch's gloo.

    build/venv/bin/python bench/peers/collectives.py [--rounds 2]

All sides run by turns; each counts with its least time. `./dev bench peers collectives` calls it.
With --gloo RANK it is one of the two processes of the gloo side.
"""
import json
import sys
import time

import two_ranks

SIZES = [1 << k for k in range(10, 27, 2)]
KINDS = ("all_reduce", "reduce_scatter", "all_gather")


def gloo(rank, port):
    import torch
    import torch.distributed as dist

    two_ranks.join_gloo(rank, port)

    def least_us(fn, size):
        count = max(3, min(300, (64 << 20) // (size + 100_000)))
        best = float("inf")
        for _ in range(4):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(count):
                fn()
            best = min(best, (time.perf_counter() - start) / count)
        return best * 1e6

    for size in SIZES:
        whole, piece = torch.zeros(size // 4), torch.zeros(size // 8)
        # gloo has no reduce_scatter in every release: absent figures are left out.
        calls = {"all_reduce": lambda: dist.all_reduce(whole),
                 "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, whole),
                 "all_gather": lambda: dist.all_gather_into_tensor(whole, piece)}
        row = {"backend": "gloo", "ranks": 2, "bytes": size, "torch": torch.__version__}
        for kind, call in calls.items():
            try:
                row[kind + "_us"] = least_us(call, size)
            except RuntimeError as error:
                print(f"gloo, {kind}: {error}", file=sys.stderr)
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def measure(binary, rounds):
    ours = lambda arguments, *launcher: two_ranks.run_ours(binary, "bench_collectives", arguments,
                                                           launcher)
    sides = [lambda: ours(["--backend", "threads"]), lambda: ours([], *two_ranks.MPIRUN)]
    if (two_ranks.ROOT / binary / "bench_peer_mpi").exists():
        sides.append(lambda: two_ranks.lines_of([*two_ranks.MPIRUN, f"{binary}/bench_peer_mpi"]))
    sides.append(lambda: two_ranks.run_gloo(__file__))
    best = {}
    for number in range(rounds):
        print(f"collectives: round {number + 1} of {rounds}", file=sys.stderr)
        for row in (row for side in sides for row in side()):
            into = best.setdefault((row["backend"], row["bytes"]), dict(row))
            for field in row:
                if field.endswith("_us"):
                    into[field] = round(min(into.get(field, row[field]), row[field]), 3)
    return best


def show(best):
    backends = list(dict.fromkeys(backend for backend, _ in best))
    for kind in KINDS:
        print(f"\n{kind}, 2 ranks, microseconds (in brackets: mpi's time over the peer's)")
        print(f"{'bytes':>10} {'memcpy':>10}" + "".join(f"{b:>22}" for b in backends))
        for size in SIZES:
            copy = best.get(("threads", size), {}).get("memcpy_us")
            line = f"{size:>10} {copy or 0:>10.2f}"
            ours = best.get(("mpi", size), {}).get(kind + "_us")
            for backend in backends:
                value = best.get((backend, size), {}).get(kind + "_us")
                ratio = f" [{ours / value:.2f}]" if value and ours and backend != "mpi" else ""
                line += f"{f'{value:.2f}{ratio}' if value else '-':>22}"
            print(line)


def compare(binary, rounds, about, out):
    best = measure(binary, rounds)
    show(best)
    two_ranks.write(out / "collectives.json", about, best.values())


if __name__ == "__main__":
    two_ranks.main(__doc__, gloo, lambda *args: show(measure(*args)), 2)
