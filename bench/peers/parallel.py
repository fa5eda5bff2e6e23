# SPDX-License-Identifier: Apache-2.0
"""Parallel training of the llama3 debug model: Tessera beside PyTorch's FSDP2, DDP and tensor
parallel over gloo, two ranks of one thread against one rank of two.

    build/venv/bin/python bench/peers/parallel.py [--rounds 10]

All sides run by turns; medians of rounds count. `./dev bench peers parallel` calls it. With
--gloo RANK it is one of the two processes of the PyTorch side.
"""
import json
import statistics
import sys
import time

import two_ranks

SHAPES = ((4, 256), (8, 512))  # sequences and tokens of each, over both ranks
WAYS = ("one rank", "fully_shard", "replicate", "tensor parallel")
STEPS = 5


def fully_sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.tok_embeddings, mesh=mesh)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard([model.norm, model.output], mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh)


def replicated(model, mesh):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, process_group=mesh.get_group())


def tensor_parallel(model, mesh):
    """torchtitan's plan of llama3, with sequence and loss parallel."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput,
                                                   RowwiseParallel, SequenceParallel,
                                                   parallelize_module)

    def whole(others):  # the first input is gathered over the sequence
        return PrepareModuleInput(input_layouts=(Shard(1), *others),
                                  desired_input_layouts=(Replicate(), *others))

    parallelize_module(model, mesh, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1),
                                  use_local_output=False)})
    for layer in model.layers:
        layer.attention.n_heads //= mesh.size()
        layer.attention.n_kv_heads //= mesh.size()
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": whole((None,)),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": whole(()),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel()})
    return model


PASSES = {"fully_shard": fully_sharded, "replicate": replicated, "tensor parallel": tensor_parallel}


def measure(way, batch, length, mesh):
    """Seconds of a step, the median of a few, and the last loss on this rank."""
    import contextlib

    import torch
    from torch.distributed.tensor.parallel import loss_parallel

    from common import Llama, fastest_adamw, loss_fn
    from train_step import MODELS

    torch.manual_seed(7)
    model = Llama(**MODELS["debugmodel"], seq_len=length)
    if way in PASSES:
        model = PASSES[way](model, mesh)
    settings = dict(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer, kind = fastest_adamw(model, **settings)
    if way in PASSES:  # one kind on both ranks: they reduce Partial gradients in different orders
        kinds = [kind]
        torch.distributed.broadcast_object_list(kinds, src=0)
        optimizer = torch.optim.AdamW(model.parameters(), **{kinds[0]: True}, **settings)
    parameters = list(model.parameters())
    rows = batch // mesh.size() if way in ("fully_shard", "replicate") else batch
    context = loss_parallel if way == "tensor parallel" else contextlib.nullcontext

    def step():
        tokens = torch.randint(0, 256, (rows, length + 1))
        start = time.perf_counter()
        optimizer.zero_grad()
        with context():
            loss = loss_fn(model(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        return time.perf_counter() - start, loss.item()

    for _ in range(2):
        step()
    steps = [step() for _ in range(STEPS)]
    return statistics.median(seconds for seconds, _ in steps), steps[-1][1]


def gloo(rank, port):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    two_ranks.join_gloo(rank, port)
    mesh = init_device_mesh("cpu", (2,))
    for batch, length in SHAPES:
        for way in WAYS:
            alone = way == "one rank"
            seconds = loss = 0
            if rank == 0 or not alone:
                torch.set_num_threads(2 if alone else 1)
                seconds, loss = measure(way, batch, length, mesh)
                torch.set_num_threads(1)
            dist.barrier()
            if rank == 0:
                print(json.dumps({"name": way, "backend": "gloo", "shape": [batch, length],
                                  "tokens_per_second": [batch * length / seconds], "loss": loss,
                                  "torch": torch.__version__}), flush=True)
    dist.destroy_process_group()


def rounds_of(binary, rounds):
    """Tokens/s of each round by (side, shape, way), and the release of PyTorch."""
    speeds, torch = {}, None
    ours = lambda *launcher: two_ranks.run_ours(
        binary, "bench_parallel_cost", ["--rounds", "1", "--steps", str(STEPS)], launcher)
    sides = (ours, lambda: ours(*two_ranks.MPIRUN), lambda: two_ranks.run_gloo(__file__))
    for number in range(rounds):
        print(f"parallel: round {number + 1} of {rounds}", file=sys.stderr)
        for row in (row for side in sides for row in side()):
            key = (row["backend"], tuple(row["shape"]), row["name"])
            speeds.setdefault(key, []).extend(round(s, 1) for s in row["tokens_per_second"])
            torch = row.get("torch", torch)
    return speeds, torch


def rows_of(speeds):
    """A row for each side, shape and way: its median, and the medians of the rounds' ratios.
    PyTorch has no side of context parallel, whose shapes and ways are left out of its column."""
    for (side, shape, way), mine in speeds.items():
        one, gloo = speeds[side, shape, "one rank"], speeds.get(("gloo", shape, way))
        ratio = lambda others: statistics.median(a / b for a, b in zip(mine, others))
        yield {"backend": side, "shape": list(shape), "name": way,
               "tokens_per_second": statistics.median(mine), "lost_percent":
               round(100 * (1 - ratio(one)), 2),
               "times_pytorch": round(ratio(gloo), 2) if gloo else None, "rounds": mine}


def show(rows):
    print(f"{'':42}{'tokens/s':>10}{'least':>10}{'most':>10}{'lost':>9}{'x PyTorch':>11}")
    for row in rows:
        name = f"{row['backend']}, {row['shape'][0]} x {row['shape'][1]}, {row['name']}"
        times = "-" if row["times_pytorch"] is None else f"{row['times_pytorch']:.2f}"
        print(f"{name:42}{row['tokens_per_second']:10.0f}{min(row['rounds']):10.0f}"
              f"{max(row['rounds']):10.0f}{row['lost_percent']:7.1f} %{times:>11}")


def compare(binary, rounds, about, out):
    speeds, torch = rounds_of(binary, rounds)
    rows = list(rows_of(speeds))
    show(rows)
    two_ranks.write(out / "parallel.json", about | {"torch": torch}, rows)


if __name__ == "__main__":
    two_ranks.main(__doc__, gloo, lambda *args: show(list(rows_of(rounds_of(*args)[0]))), 10)
