# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a 124M Llama and its AdamW states on two ranks: Tessera's beside those of
torch.distributed.checkpoint, with FSDP2 over gloo, and beside the machine's disk and memory.

    build/venv/bin/python bench/peers/checkpoint.py [--rounds 2]

All sides run by turns; medians of rounds count. `./dev bench peers checkpoint` calls it. With
--gloo RANK it is one of the two processes of the PyTorch side.
"""
import json
import os
import pathlib
import shutil
import statistics
import sys
import time

import two_ranks

FOLDER = "build/bench_checkpoint"
LENGTH = 128


def resident(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def gloo(rank, port):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from common import Llama, loss_fn
    from train_step import MODELS

    two_ranks.join_gloo(rank, port)
    mesh = init_device_mesh("cpu", (2,))
    saving = dist.new_group(backend="gloo")  # its collectives would meet those of steps
    model = Llama(**MODELS["124M"], seq_len=LENGTH)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        tokens = torch.randint(0, 256, (1, LENGTH + 1))
        optimizer.zero_grad()
        loss_fn(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()

    def state():
        of_model, of_optimizer = get_state_dict(model, optimizer)
        return {"model": of_model, "optimizer": of_optimizer}

    def slowest(seconds):
        seconds = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return seconds.item()

    def timed(fn):
        dist.barrier()
        start = time.perf_counter()
        fn()
        return slowest(time.perf_counter() - start)

    folder = pathlib.Path(FOLDER)
    figures, running = {}, []
    note = lambda name, seconds: figures.__setitem__(name, seconds)

    def drop_from_cache(path):
        dist.barrier()
        for file in path.iterdir() if rank == 0 else ():
            with open(file, "rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def begin(path):
        running[:] = [dcp.async_save(state(), checkpoint_id=path, process_group=saving)]

    step()
    note("save", timed(lambda: dcp.save(state(), checkpoint_id=folder / "sync")))
    drop_from_cache(folder / "sync")
    load = lambda: dcp.load(state(), checkpoint_id=folder / "sync")
    note("load from disk", timed(load))
    note("load from cache", timed(load))
    # The first one: later ones use its memory again.
    before = resident("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    begin(folder / "async")
    running[0].result()
    extra = resident("VmHWM") - before
    dist.barrier()
    shutil.rmtree(folder / "async", ignore_errors=True)
    dist.barrier()
    alone, beside = [timed(step) for _ in range(3)], []
    note("async: snapshot", timed(lambda: begin(folder / "async")))
    while slowest(0.0 if running[0].done() else 1.0) > 0:
        beside.append(timed(step))
    note("async: commit", timed(lambda: running[0].result()))
    note("step", statistics.median(alone))
    if beside:
        note("step during a save", statistics.median(beside))
    held = 3 * sum(p.to_local().numel() * p.element_size() for p in model.parameters())
    if rank == 0:
        for name, seconds in figures.items():
            print(json.dumps({"name": name, "backend": "gloo", "seconds": [seconds]}))
        print(json.dumps({"name": "async: memory", "backend": "gloo", "copies": extra / held,
                          "torch": torch.__version__}), flush=True)
    dist.destroy_process_group()


def run_gloo():
    try:
        return two_ranks.run_gloo(__file__)
    finally:
        shutil.rmtree(two_ranks.ROOT / FOLDER, ignore_errors=True)


def rows_of(binary, rounds):
    """A row for each figure and side, with all rounds; the bytes of the state; PyTorch's release."""
    ours = lambda *launcher: two_ranks.run_ours(
        binary, "bench_checkpoint", ["--rounds", "1", "--folder", FOLDER], launcher)
    sides = (ours, lambda: ours(*two_ranks.MPIRUN), run_gloo)
    rows, gigabytes, torch = {}, None, None
    for number in range(rounds):
        print(f"checkpoint: round {number + 1} of {rounds}", file=sys.stderr)
        for row in (row for side in sides for row in side()):
            gigabytes, torch = row.get("gigabytes", gigabytes), row.get("torch", torch)
            field = "seconds" if "seconds" in row else "copies"
            into = rows.setdefault((row["name"], row["backend"]),
                                   {"name": row["name"], "backend": row["backend"], field: []})
            into[field] += [round(v, 4) for v in
                            (row[field] if field == "seconds" else [row[field]])]
    return list(rows.values()), gigabytes, torch


def show(rows, gigabytes):
    print(f"{gigabytes:.2f} GB on 2 ranks, medians")
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    print(f"{'':22}" + "".join(f"{b:>24}" for b in backends))
    for name in dict.fromkeys(row["name"] for row in rows):
        line = f"{name:22}"
        for backend in backends:
            row = next((r for r in rows if (r["name"], r["backend"]) == (name, backend)), {})
            if "seconds" in row:
                seconds = statistics.median(row["seconds"])
                moves = not name.startswith(("step", "async: commit"))
                rate = f" {gigabytes / seconds:.2f} GB/s" if moves else ""
                line += f"{f'{seconds:.3f} s{rate}':>24}"
            else:
                copies = row.get("copies")
                line += f"{f'{max(copies):.2f} copies' if copies else '-':>24}"
        print(line)


def compare(binary, rounds, about, out):
    rows, gigabytes, torch = rows_of(binary, rounds)
    show(rows, gigabytes)
    two_ranks.write(out / "checkpoint.json",
                    about | {"torch": torch, "gigabytes": round(gigabytes, 3)}, rows)


if __name__ == "__main__":
    two_ranks.main(__doc__, gloo, lambda *args: show(*rows_of(*args)[:2]), 2)
