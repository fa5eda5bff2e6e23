# SPDX-License-Identifier: Apache-2.0
"""Collectives between two ranks: Tessera (threads, processes) beside raw MPI and PyTorch's gloo.

    build/venv/bin/python bench/peers/collectives.py [--rounds 2]

All sides run by turns; each counts with its least time. `./dev bench peers collectives` calls it.
With --gloo RANK it is one of the two processes of the gloo side.
"""
import argparse
import datetime
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = [1 << k for k in range(10, 27, 2)]
KINDS = ("all_reduce", "reduce_scatter", "all_gather")


def gloo(rank, port):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

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


def lines_of(command, environment=None):
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True,
                            env=os.environ | (environment or {}))
    if result.returncode != 0:
        sys.exit(f"collectives: {' '.join(command)} failed:\n{result.stderr.strip()}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def run_gloo():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, __file__, "--port", port, "--gloo"]
    other = subprocess.Popen([*command, "1"], cwd=ROOT)
    rows = lines_of([*command, "0"])
    other.wait()
    return rows


def run_ours(binary, launcher=(), arguments=()):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        lines_of([*launcher, f"{binary}/bench_collectives", *arguments, "--json", file.name])
        return [json.loads(line) for line in pathlib.Path(file.name).read_text().splitlines()]


def measure(binary, rounds):
    mpirun = ["./dev", "mpirun", "-n", "2"]
    sides = [lambda: run_ours(binary, arguments=["--backend", "threads"]),
             lambda: run_ours(binary, mpirun)]
    if (ROOT / binary / "bench_peer_mpi").exists():
        sides.append(lambda: lines_of([*mpirun, f"{binary}/bench_peer_mpi"]))
    sides.append(run_gloo)
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


def compare(binary, rounds, out):
    load = os.getloadavg()[0]
    best = measure(binary, rounds)
    show(best)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")
    about = {"date": now, "cores": os.cpu_count(), "load_at_start": load}
    rows = ",\n".join(" " + json.dumps(row) for row in best.values())
    out.mkdir(parents=True, exist_ok=True)
    path = out / "collectives.json"
    path.write_text("{" + json.dumps(about)[1:-1] + ',\n"rows": [\n' + rows + "\n]}\n")
    print(f"wrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="times that each side runs, by turns")
    parser.add_argument("--bin", default="build/release/bin", help="folder of the programs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/cpu")
    parser.add_argument("--gloo", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gloo is not None:
        gloo(args.gloo, args.port)
    else:
        compare(args.bin, args.rounds, args.out)


if __name__ == "__main__":
    main()
