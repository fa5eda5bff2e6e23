# SPDX-License-Identifier: Apache-2.0
"""What `tessera train` adds to a bare training step, and what a run's start costs.

`./dev bench peers trainer --threads 2 --rounds 3` calls it. Two processes cannot tell 1 %, since a
machine's speed drifts by more, so what is added comes from the trainer's own trace: from the start
of a step to the start of the next one, all that is not forward, backward, clipping or optimizer
(data, loss over ranks, checks, metrics, the step line). The bare step by bench_train_step and the
step without a trace, between two printed lines, stand beside it.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = [("debugmodel", 8, 512, "float32"), ("debugmodel", 8, 512, "mixed"),
            ("debugmodel", 8, 256, "float32")]
STEPS, WARM_UP = 12, 3
CORE = ("forward", "backward", "gradients", "optimizer")


def write_tokens(path, count):
    """A .npy of random token ids below 256, as the bare step draws them."""
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % count
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    ids = b"".join(bytes((b, 0, 0, 0)) for b in os.urandom(count))
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
                     + ids)


def bare_ms(bin, setting, threads, folder):
    model, batch, length, precision = setting
    out = folder / "bare.jsonl"
    out.unlink(missing_ok=True)
    subprocess.run([f"{bin}/bench_train_step", "--model", model, "--batch", str(batch), "--seq",
                    str(length), "--precision", precision, "--threads", str(threads), "--steps",
                    str(STEPS - WARM_UP), "--json", str(out)], cwd=ROOT, check=True,
                   capture_output=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return next(row["time_us"] / 1000 for row in rows if row["name"].startswith("train_step"))


def train(bin, setting, threads, folder, steps, *more):
    """Seconds from the process's start at which each step's line came, and its peak memory."""
    model, batch, length, precision = setting
    tokens = folder / "tokens.npy"
    if not tokens.exists():
        write_tokens(tokens, 1 << 20)
    start = time.perf_counter()
    process = subprocess.Popen(
        [f"{bin}/tessera", "train", "--recipe", f"llama3_{model}", "--dataloader.path", str(tokens),
         "--training.local_batch_size", str(batch), "--training.seq_len", str(length),
         "--training.mixed_precision_param", "bfloat16" if precision == "mixed" else "float32",
         "--training.steps", str(steps), "--threads", str(threads), "--sample.tokens", "0",
         "--dump_folder", str(folder / "run"), "--overwrite", *more], cwd=ROOT, text=True, stdout=subprocess.PIPE)
    times = [time.perf_counter() - start for line in process.stdout if line.startswith("step:")]
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0 or len(times) != steps:
        sys.exit(f"trainer: tessera train gave status {status} and {len(times)} step lines")
    return times, usage.ru_maxrss / 1024


def added_percents(folder):
    """Of each traced step but the last: what stands beside its core phases, in percent of them."""
    path, = (folder / "run").glob("**/rank0_trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    steps = sorted((e["ts"], e["dur"]) for e in events if e.get("cat") == "step")
    phases = [e for e in events if e.get("cat") == "phase" and e["name"] in CORE]
    out = []
    for (start, _), (next_start, _) in zip(steps, steps[1:]):
        core = sum(e["dur"] for e in phases if start <= e["ts"] < next_start)
        out.append(100 * ((next_start - start) / core - 1))
    return out


def measure(bin, setting, threads, rounds, folder):
    bare, whole, first, memory, added = [], [], [], [], []
    for _ in range(rounds):
        bare.append(bare_ms(bin, setting, threads, folder))
        times, _ = train(bin, setting, threads, folder, STEPS)
        gaps = [b - a for a, b in zip(times[WARM_UP - 1:], times[WARM_UP:])]
        whole.append(1000 * statistics.median(gaps))
        train(bin, setting, threads, folder, STEPS, "--profiler.enable_profiling",
              "--profiler.profile_freq", str(STEPS), "--profiler.profiler_active",
              str(STEPS - WARM_UP))
        added += added_percents(folder)
        times, peak = train(bin, setting, threads, folder, 1)
        first.append(times[0])
        memory.append(peak)
    model, batch, length, precision = setting
    return {"name": f"{model} {batch} x {length} {precision}", "threads": threads,
            "bare_ms": [round(t, 2) for t in bare], "train_ms": [round(t, 2) for t in whole],
            "added_percent": round(statistics.median(added), 3),
            "added_percent_at_most": round(max(added), 3),
            "seconds_to_first_step": [round(t, 3) for t in first],
            "peak_rss_mib_of_one_step": round(statistics.median(memory), 1)}


def compare(bin, rounds, threads, about, out):
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(bin, s, threads, rounds, pathlib.Path(folder)) for s in SETTINGS]
    for row in rows:
        print(f"{row['name']}: bare step {min(row['bare_ms']):.1f} ms, tessera train "
              f"{min(row['train_ms']):.1f} ms; the trainer adds {row['added_percent']:.2f} % (at "
              f"most {row['added_percent_at_most']:.2f} %); first step done after "
              f"{min(row['seconds_to_first_step']):.2f} s, "
              f"{row['peak_rss_mib_of_one_step']:.0f} MiB resident at most")
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(" " + json.dumps(row) for row in rows)
    head = json.dumps(about)[1:-1]
    (out / "trainer.json").write_text("{" + head + ',\n"rows": [\n' + lines + "\n]}\n")
