# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks on two ranks share: Tessera's program, the two processes of the PyTorch side
over gloo, the command line and the file of figures."""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MPIRUN = ["./dev", "mpirun", "-n", "2"]


def json_lines(lines):
    return [json.loads(line) for line in lines if line.startswith("{")]


def lines_of(command):
    """The JSON lines that a command prints."""
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr.strip()}")
    return json_lines(result.stdout.splitlines())


def run_ours(binary, program, arguments=(), launcher=()):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        lines_of([*launcher, f"{binary}/{program}", *arguments, "--json", file.name])
        return json_lines(pathlib.Path(file.name).read_text().splitlines())


def run_gloo(script):
    """What rank 0 prints of the two processes `script --gloo 0` and `script --gloo 1`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, script, "--port", port, "--gloo"]
    with tempfile.TemporaryFile("w+") as out:
        ranks = [subprocess.Popen([*command, str(rank)], cwd=ROOT, stdout=out) for rank in (0, 1)]
        try:  # a rank whose peer has died would wait for it
            while None in (statuses := [rank.poll() for rank in ranks]) and not any(statuses):
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.kill()
        if any(statuses):
            sys.exit(f"{' '.join(command)} 0 and 1 ended with status {statuses[0]} and "
                     f"{statuses[1]} (None: it was ended for the other's sake)")
        out.seek(0)
        return json_lines(out)


def join_gloo(rank, port):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank),
                   "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")


def write(path, about, rows):
    """One row a line, so that a diff of two runs can be read."""
    lines = ",\n".join(" " + json.dumps(row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + json.dumps(about)[1:-1] + ',\n"rows": [\n' + lines + "\n]}\n")
    print(f"wrote {path}")


def main(doc, gloo, measure_and_show, rounds):
    """Calls measure_and_show(folder of the programs, rounds), or gloo(rank, port) as one of its
    processes."""
    parser = argparse.ArgumentParser(description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds,
                        help="times that each side runs, by turns")
    parser.add_argument("--bin", default="build/release/bin", help="folder of the programs")
    parser.add_argument("--gloo", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gloo is not None:
        gloo(args.gloo, args.port)
    else:
        measure_and_show(args.bin, args.rounds)
