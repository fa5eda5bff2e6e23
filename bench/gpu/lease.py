#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Some minutes of a GPU: what is worth most first, tests side by side, every piece in its own time.

`bench/gpu/run.sh --lease SECONDS` calls it. A piece that fails, hangs or dies costs itself alone; a
test that does so is tried once more by itself. Each piece leaves a line in summary.txt when it ends,
and results.tgz has the logs. A call takes up what failed, was cut off or is missing, and leaves alone
what passed with the same commit and device. PyTorch's side is kept by card and version of PyTorch.
"""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARGIN = 6  # seconds kept for packing
MOST_BYTES = 16 << 20  # of summary.txt, and of results.tgz
LOG_BYTES = 400_000  # of one log in results.tgz: its end
TEXT = "LICENSE"
WITHOUT_CUDNN = {"TESSERA_CUDNN_LIBRARY": "none"}


@dataclasses.dataclass
class Result:
    status: str  # passed, failed, skipped, cut off
    figure: str = ""
    error: str = ""
    keep: dict = dataclasses.field(default_factory=dict)  # for the next call


@dataclasses.dataclass
class Piece:
    name: str
    limit: float  # seconds
    run: object  # (lease, piece, what the last call kept) -> Result
    beside: str = ""  # pieces of one name run at once


def first_error(text, otherwise="no output"):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(
        r"rror|Failure|\*\*\*|CUDA|NCCL|what\(\)|expected|cannot", line) and "ERROR SUMMARY: 0" not in line]
    return (telling or lines[-1:] or [otherwise])[0][:300]


class Lease:
    def __init__(self, seconds, limit, out, bin, device, driver, commit):
        self.limit = limit  # of a process of tests, where its own is longer
        self.end = time.monotonic() + seconds
        self.start = time.monotonic()
        self.out, self.bin = pathlib.Path(out), pathlib.Path(bin)
        self.logs = self.out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.about = {"device": device, "commit": commit}
        self.lock = threading.Lock()
        self.state = self.read_state()
        date = time.strftime("%FT%RZ", time.gmtime())
        (self.out / "summary.txt").write_text(f"{device}, driver {driver}, {date}, commit {commit}\n")

    # --- what is kept from call to call -------------------------------------------------------------

    def read_state(self):
        try:
            state = json.loads((self.out / "lease.json").read_text())
            if all(state[name] == value for name, value in self.about.items()):
                return state["pieces"]
        except (OSError, ValueError, KeyError):
            pass
        return {}

    def ended(self, piece, result, seconds):
        line = f"[{time.monotonic() - self.start:5.0f} s] {piece.name:16} {result.status:8} {seconds:5.1f} s"
        for text in (result.figure, result.error):
            line += "  " + text if text else ""
        with self.lock:
            print("gpu: " + line, flush=True)
            with open(self.out / "summary.txt", "a") as summary:
                if summary.tell() < MOST_BYTES - 4000:
                    summary.write(line[:2000] + "\n")
            if result.status == "skipped":
                self.state.pop(piece.name, None)
            else:
                self.state[piece.name] = dataclasses.asdict(result)
            part = self.out / "lease.json.part"
            part.write_text(json.dumps({**self.about, "pieces": self.state}))
            part.replace(self.out / "lease.json")

    def pack(self):
        """The ends of all logs, the newest first, as many as fit."""
        part = self.out / "results.tgz.part"
        files = sorted((f for f in self.logs.rglob("*") if f.is_file()),
                       key=lambda f: f.stat().st_mtime, reverse=True)
        left = 4 * MOST_BYTES  # logs become a fifth of their size, or less
        with tarfile.open(part, "w:gz") as tar:
            for file in [self.out / "summary.txt", self.out / "lease.json", *files]:
                if not file.exists():
                    continue
                data = file.read_bytes()
                data = data if file.suffix == ".json" else data[-LOG_BYTES:]
                left -= len(data)
                if left < 0 or part.stat().st_size > MOST_BYTES - 2 * LOG_BYTES:
                    break
                info = tarfile.TarInfo(str(file.relative_to(self.out)))
                info.size, info.mtime = len(data), int(file.stat().st_mtime)
                with open(file, "rb") as content:
                    content.seek(max(0, file.stat().st_size - len(data)))
                    tar.addfile(info, content)
        part.replace(self.out / "results.tgz")

    # --- processes ----------------------------------------------------------------------------------

    def left(self):
        return self.end - time.monotonic() - MARGIN

    def begin(self, log, command, env=None):
        file = open(self.logs / log, "w")
        file.write(" ".join(map(str, command)) + "\n")
        file.flush()
        return subprocess.Popen(list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
                                env={**os.environ, **(env or {})}, start_new_session=True)

    def wait(self, process, limit):
        """Its status; 124 if it was ended at the limit."""
        try:
            return process.wait(max(0.1, min(limit, self.left())))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return 124

    def run(self, log, command, limit, env=None):
        status = self.wait(self.begin(log, command, env), limit)
        return status, self.text(log)

    def text(self, log):
        return (self.logs / log).read_text(errors="replace").split("\n", 1)[1]


# --- tests ------------------------------------------------------------------------------------------


class Tests:
    """The tests of a program, in batches, by several processes at once."""

    def __init__(self, lease, piece, program, workers, batch, each, before=(), env=None):
        self.lease, self.piece, self.program = lease, piece, lease.bin / program
        self.workers, self.batch, self.each = workers, batch, each
        self.before, self.env = list(before), env
        self.results, self.alone, self.queue = {}, set(), collections.deque()
        self.runs, self.end = 0, time.monotonic() + piece.limit

    def list(self, pattern):
        said = subprocess.run([self.program, "--gtest_list_tests", "--gtest_filter=" + pattern],
                              capture_output=True, text=True, cwd=ROOT).stdout
        names, suite = [], ""
        for line in said.splitlines():
            if re.match(r"\S+\.", line):
                suite = line.split()[0]
            elif line.startswith("  "):
                names.append(suite + line.split()[0])
        return names

    def run(self, pattern, kept):
        names = self.list(pattern)
        if not names:
            return Result("failed", error=f"{self.program.name} lists no tests")
        self.results = {n: "passed" for n in kept.get("passed", []) if n in names}
        rest = [n for n in names if n not in self.results]
        self.queue.extend(rest[i:i + self.batch] for i in range(0, len(rest), self.batch))
        threads = [threading.Thread(target=self.work) for _ in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        of = {kind: [n for n, r in self.results.items() if r == kind] for kind in ("passed", "skipped")}
        failed = {n: r for n, r in self.results.items() if r not in of}
        figure = f"{len(of['passed'])} of {len(names)} passed"
        figure += f", {len(of['skipped'])} skipped" if of["skipped"] else ""
        missing = len(names) - len(self.results)
        figure += f", {missing} not run" if missing else ""
        status = "failed" if failed else "cut off" if missing else "passed"
        return Result(status, figure, "; ".join(f"{n}: {e}" for n, e in sorted(failed.items()))[:1500],
                      {"passed": of["passed"]})

    def work(self):
        while time.monotonic() < self.end - 1 and self.lease.left() > 1:
            with self.lease.lock:
                if not self.queue:
                    return
                tests = self.queue.popleft()
                self.runs += 1
                log = f"{self.piece.name}.{self.runs}.log"
            status, text = self.lease.run(
                log, [*self.before, self.program, "--gtest_color=no", "--gtest_filter=" + ":".join(tests)],
                min(self.lease.limit, 20 + self.each * len(tests), self.end - time.monotonic()), self.env)
            with self.lease.lock:
                self.judge(tests, status, text)

    def judge(self, tests, status, text):
        def names(pattern):
            return set(re.findall(pattern, text, re.M))
        passed, skipped = names(r"^\[       OK \] ([^ ,]+)"), names(r"^\[  SKIPPED \] ([^ ,]+)")
        failed, began = names(r"^\[  FAILED  \] ([^ ,]+).* ms\)$"), names(r"^\[ RUN      \] ([^ \n]+)$")
        unended = began - passed - skipped - failed
        out_of_time = status == 124 and time.monotonic() >= self.end - 1
        if status not in (0, 124) and not failed and not unended:
            unended = set(tests)  # its tests ended well but the process failed, or no test began
            passed = set()
        again = []
        for test in tests:
            if test in passed or test in skipped:
                self.results[test] = "passed" if test in passed else "skipped"
            elif test in failed or test in unended:
                if test in self.alone or out_of_time and len(tests) == 1:
                    how = "" if test in failed else "no end: " if status == 124 else f"status {status}: "
                    self.results[test] = how + first_error(text)
                elif not out_of_time:
                    self.alone.add(test)
                    self.queue.append([test])
            else:
                again.append(test)
        if again:
            self.queue.append(again)


def tests(program, pattern, workers, batch, each, before=(), env=None):
    """`each`: seconds that a test may take, beside 20 for the process."""
    return lambda lease, piece, kept: \
        Tests(lease, piece, program, workers, batch, each, before, env).run(pattern, kept)


def memcheck(lease, piece, kept):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not tool:
        return Result("skipped", error="no compute-sanitizer")
    before = [tool, "--tool", "memcheck", "--track-stream-ordered-races", "all", "--error-exitcode", "9"]
    # It sees allocations of the driver alone.
    return tests("tessera_law_tests", "Laws/Cuda.*", 13, 7, 8, before,
                 {"TESSERA_NO_CUDA_MEMORY_CACHING": "1"})(lease, piece, kept)


# --- figures ----------------------------------------------------------------------------------------


def rows(path):
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return []


def bench(program, *args, figure=lambda rows: f"{len(rows)} rows", env=None):
    def piece(lease, piece, _):
        out = lease.logs / f"{piece.name}.json"
        out.unlink(missing_ok=True)
        status, text = lease.run(f"{piece.name}.log", [lease.bin / program, *args, "--json", out], piece.limit,
                                 env)
        found = rows(out)
        if status == 0 and found:
            return Result("passed", figure(found))
        if re.search(r"\[trace\].*CUPTI", text):
            return Result("skipped", error=first_error(text))
        late = status == 124
        return Result("cut off" if late and lease.left() <= 0 else "failed",
                      error=f"no end within {piece.limit:.0f} s" if late else first_error(text))
    return piece


def step_figure(found):
    row = next((r for r in found if "tokens_per_second" in r), {})
    text = f"{row.get('time_us', 0) / 1000:.1f} ms a step, {row.get('percent_of_gemm_ceiling', 0):.1f} % of the GEMM ceiling"
    if "loss_difference" in row:
        text += f", losses within {row['loss_difference']:.1e} of the CPU's"
    kernels = [r for r in found if r.get("name") == "kernel"]
    if kernels:
        top = max(kernels, key=lambda r: r["ms"])
        text += f"; most: {top['kernel'][:60]} {top['ms']:.1f} ms, {top['percent_of_limit_of_the_op']:.0f} % of the limit"
    return text


def sweep_figure(found):
    """The kernels for which a variant beats libtessera_cuda's own by more than 3 %."""
    cases = collections.defaultdict(list)
    for row in found:
        if row.get("name") == "variant" and "time_us" in row:
            cases[row["kernel"], row["case"]].append(row)
    better = []
    for (kernel, case), variants in cases.items():
        own = next((r for r in variants if r["chosen"]), None)
        best = min(variants, key=lambda r: r["time_us"])
        if own and best["time_us"] < 0.97 * own["time_us"]:
            better.append(f"{kernel}, {case}: {best['variant']} takes {best['time_us']:.0f} us of {own['time_us']:.0f}")
    wrong = [f"{r['kernel']}, {r['case']}, {r['variant']}" for v in cases.values() for r in v if not r["difference"] < 0.02]
    text = f"{sum(map(len, cases.values()))} variants of {len(cases)} cases"
    text += f"; WRONG: {'; '.join(wrong)}" if wrong else ""
    return text + (f"; faster: {'; '.join(better)}" if better else "; none beats the chosen one by 3 %")


def step(device, model, precision, batch, length, *more, env=None):
    return bench("bench_train_step", "--device", device, "--model", model, "--precision", precision, "--batch", batch,
                 "--seq", length, "--steps", 3, *more, figure=step_figure, env=env)


def golden(model, precision, batch, length):
    """The CPU's losses, which the bundle has or this machine makes, and whether the device has them."""
    def piece(lease, piece, kept):
        expected = ROOT / "bench" / "gpu" / "goldens" / f"{model}_{precision}.json"
        if not expected.exists():
            expected = lease.logs / f"cpu_{model}_{precision}.json"
        if not expected.exists():
            made = step("cpu", model, precision, batch, length)(
                lease, dataclasses.replace(piece, name=expected.stem), kept)
            if made.status != "passed":
                return dataclasses.replace(made, error="on the CPU: " + made.error)
        return step("cuda", model, precision, batch, length, "--golden", expected)(lease, piece, kept)
    return piece


# --- ranks on one GPU -------------------------------------------------------------------------------


def refused_namespaces():
    tried = subprocess.run(["unshare", "-p", "-f", "--mount-proc", "true"], capture_output=True, text=True) \
        if shutil.which("unshare") else None
    if tried is None:
        return "no unshare"
    return tried.stderr.strip() or "refused" if tried.returncode else ""


def begin_ranks(lease, name, count, command, port):
    """Each a host of its own to NCCL, which refuses two ranks of a host on one GPU."""
    processes = []
    for rank in range(count):
        folder = lease.logs / f"{name}.tmp{rank}"
        folder.mkdir(exist_ok=True)
        env = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NCCL_HOSTID": f"host{rank}",
               "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1, "TMPDIR": folder}
        processes.append(lease.begin(f"{name}.{rank}.log", ["unshare", "-p", "-f", "--mount-proc", *command],
                                     {k: str(v) for k, v in env.items()}))
    return processes


def ranks(lease, name, count, command, limit):
    """The worst status and the text of all ranks."""
    port = 20000 + (os.getpid() * 7 + sum(map(ord, name))) % 20000
    end = time.monotonic() + limit
    statuses = [lease.wait(p, end - time.monotonic()) for p in begin_ranks(lease, name, count, command, port)]
    for folder in lease.logs.glob(f"{name}.tmp*"):
        shutil.rmtree(folder, ignore_errors=True)
    return max(statuses, key=abs), "".join(lease.text(f"{name}.{rank}.log") for rank in range(count))


MESHES = [("shards", 2, "llama3_debugmodel", []),
          ("tensor", 2, "llama3_debugmodel", ["tensor_parallel_degree=2"]),
          ("context", 2, "llama3_debugmodel", ["context_parallel_degree=2"]),
          ("experts", 2, "qwen3_debugmodel_moe_small", ["expert_parallel_degree=2"]),
          ("shards_tensor", 4, "llama3_debugmodel", ["tensor_parallel_degree=2"]),
          ("hsdp", 4, "llama3_debugmodel", ["data_parallel_replicate_degree=2"]),
          ("ring", 4, "llama3_debugmodel", ["context_parallel_degree=4", "context_parallel_rotate_method=alltoall"]),
          ("experts_tensor", 4, "qwen3_debugmodel_moe_small", ["tensor_parallel_degree=2", "expert_parallel_degree=2"])]


def logged(folder):
    return [(r["loss"], r["grad_norm"]) for r in rows(folder / "metrics.jsonl") if "loss" in r]


def meshes(lease, piece, kept):
    if why := refused_namespaces():
        return Result("skipped", error=f"pid namespaces: {why}")
    good, errors = [], []
    for name, count, recipe, degrees in MESHES:
        if name in kept.get("passed", []):
            good.append(name)
            continue
        words = [lease.bin / "tessera", "train", "--recipe", recipe, "--dataloader.path", TEXT, "--training.steps", 3,
                 "--training.seq_len", 128, "--training.local_batch_size", 2, "--training.mixed_precision_param",
                 "float32", "--sample.tokens", 0, "--checkpoint.enable", "false", "--overwrite", "true", "--optimizer.eps", "1e-4",
                 *(f"--parallelism.{d}" for d in degrees)]
        on = {device: lease.logs / f"mesh_{name}_{device}" for device in ("cpu", "cuda")}
        host, text = lease.run(f"mesh_{name}.cpu.log", [*words, "--device", "cpu", "--threads", 1, "--ranks", count,
                                                        "--dump_folder", on["cpu"]], 60)
        status, there = ranks(lease, f"mesh_{name}", count,
                              [*words, "--device", "cuda", "--dump_folder", on["cuda"]], 45)
        want, got = logged(on["cpu"]), logged(on["cuda"])
        if host != 0 or status != 0:
            errors.append(f"{name}: {first_error(text if host else there)}")
        elif len(want) != 3 or len(got) != 3 or any(
                abs(g - w) > 1e-3 * abs(w) for a, b in zip(got, want) for g, w in zip(a, b)):
            errors.append(f"{name}: {got} where the CPU has {want}")
        else:
            good.append(name)
        if lease.left() <= 0:
            break
    missing = len(MESHES) - len(good) - len(errors)
    return Result("failed" if errors else "cut off" if missing else "passed",
                  f"{len(good)} of {len(MESHES)} have the CPU's losses and norms", "; ".join(errors)[:1500],
                  {"passed": good})


def nccl_on_two(lease, piece, _):
    if why := refused_namespaces():
        return Result("skipped", error=f"pid namespaces: {why}")
    status, text = ranks(lease, piece.name, 2, [lease.bin / "tessera_nccl_tests", "--gtest_color=no"], piece.limit)
    passed = len(set(re.findall(r"^\[       OK \] ([^ ,]+)", text, re.M)))
    failed = sorted(set(re.findall(r"^\[  FAILED  \] ([^ ,]+).* ms\)$", text, re.M)))
    late = f"no end within {piece.limit:.0f} s; " if status == 124 else ""
    error = late + (" ".join(failed) or first_error(text)) if status else ""
    return Result("failed" if status else "passed", f"{passed} passed", error)


def job(lease, piece, _):
    """A run with checkpoints that is resumed, and text from it."""
    folder = lease.logs / "job"
    train = [lease.bin / "tessera", "train", "--recipe", "llama3_debugmodel", "--device", "cuda", "--dump_folder",
             folder, "--dataloader.path", TEXT, "--training.seq_len", 256, "--training.local_batch_size", 8,
             "--checkpoint.enable", "true", "--checkpoint.interval", 50, "--checkpoint.last_save_model_only", "false",
             "--sample.tokens", 0]
    shutil.rmtree(folder, ignore_errors=True)
    for name, command in (("train", [*train, "--training.steps", 100]), ("resume", [*train, "--training.steps", 120]),
                          ("generate", [lease.bin / "tessera", "generate", "--checkpoint", folder, "--device", "cuda",
                                        "--prompt", "Licensed"])):
        status, text = lease.run(f"job.{name}.log", command, piece.limit)
        if status != 0:
            return Result("failed", error=f"{name}: {first_error(text)}")
    losses = logged(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return Result("passed", f"loss {losses[0][0]:.3f} to {losses[-1][0]:.3f} over {len(losses)} steps, resumed"
                  if losses else "resumed")


# --- PyTorch ----------------------------------------------------------------------------------------


def peer(model, batch, length, *more):
    def piece(lease, piece, _):
        asked = subprocess.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available(); "
                                "print(torch.__version__)"], capture_output=True, text=True)
        if asked.returncode:
            return Result("skipped", error="no Python with PyTorch for this device")
        card = re.sub(r"\W+", "_", lease.about["device"])
        kept = lease.out / "peers" / f"{card}_{asked.stdout.strip()}_{piece.name}.json"
        if not kept.exists():
            status, text = lease.run(f"{piece.name}.log", [
                sys.executable, "bench/peers/train_step.py", "--device", "cuda", "--model", model, "--precision",
                "mixed", "--batch", batch, "--seq", length, *more], piece.limit)
            lines = [line for line in text.splitlines() if line.startswith("{")]
            if status != 0 or not lines:
                return Result("failed", error=first_error(text))
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(lines[-1] + "\n")
        row = json.loads(kept.read_text())
        return Result("passed", f"PyTorch {asked.stdout.strip()}: {row.get('time_us', 0) / 1000:.1f} ms a step")
    return piece


# Pieces of the group "tests" need the CPU more than the GPU, so they run at once.
PIECES = [
    Piece("laws", 110, tests("tessera_law_tests", "Laws/Cuda.*:CudaSizes.*", 9, 5, 8), "tests"),
    Piece("device", 110, tests("tessera_device_tests", "DeviceRun.*:DeviceBounds.*-*WithoutADevice*:*WithADriver*", 2, 1, 40), "tests"),
    Piece("attention", 110, tests("tessera_law_tests", "*AttentionPathsCuda*", 1, 28, 4), "tests"),
    Piece("attention_own", 110, tests("tessera_law_tests", "*AttentionPathsCuda*", 1, 28, 4, env=WITHOUT_CUDNN), "tests"),
    Piece("nccl", 110, tests("tessera_nccl_tests", "*", 3, 3, 30), "tests"),
    Piece("cpu_1B_float32", 110, step("cpu", "1B", "float32", 1, 256, "--threads", 6), "tests"),
    Piece("golden_debug", 30, golden("debugmodel", "float32", 8, 512)),
    Piece("golden_mixed", 30, golden("debugmodel", "mixed", 8, 512)),
    Piece("golden_124M", 40, golden("124M", "float32", 2, 512)),
    Piece("golden_1B", 40, golden("1B", "float32", 1, 256)),
    Piece("ceilings", 30, bench("bench_ceilings", "--device", "cuda")),
    Piece("step_1B", 80, step("cuda", "1B", "mixed", 4, 4096, "--kernels")),
    Piece("step_1B_own", 60, step("cuda", "1B", "mixed", 4, 4096, "--kernels", env=WITHOUT_CUDNN)),
    Piece("step_124M", 50, step("cuda", "124M", "mixed", 16, 1024, "--kernels")),
    Piece("step_debug", 30, step("cuda", "debugmodel", "float32", 8, 512, "--kernels")),
    Piece("step_experts", 40, step("cuda", "debugmodel_moe", "mixed", 4, 1024, "--family", "qwen3", "--kernels")),
    Piece("moe", 40, bench("bench_moe", "--device", "cuda")),
    Piece("sweep", 60, bench("bench_kernels", figure=sweep_figure)),
    Piece("meshes", 150, meshes),
    Piece("job", 40, job),
    Piece("nccl_on_two", 120, nccl_on_two),
    Piece("memcheck", 80, memcheck),
    Piece("peer_124M", 60, peer("124M", 16, 1024)),
    Piece("peer_1B", 60, peer("1B", 4, 4096)),
    Piece("graph", 50, step("cuda", "124M", "mixed", 4, 1024, "--graph")),
    Piece("peer_compiled", 90, peer("1B", 4, 4096, "--compile")),
]


def do(lease, piece):
    start = time.monotonic()
    kept = lease.state.get(piece.name, {}).get("keep", {})
    try:
        result = piece.run(lease, dataclasses.replace(piece, limit=min(piece.limit, lease.left())), kept)
    except Exception as error:  # a fault of this script is one of its piece alone
        result = Result("failed", error=f"lease.py: {error!r}")
    lease.ended(piece, result, time.monotonic() - start)


def chosen(lease, only):
    """What failed first, then what is missing, each in the order of worth."""
    if only:
        return [p for p in PIECES if p.name in only]
    status = {p.name: lease.state.get(p.name, {}).get("status", "missing") for p in PIECES}
    return [p for p in PIECES if status[p.name] == "failed"] + \
        [p for p in PIECES if status[p.name] not in ("failed", "passed")]


def main():
    parser = argparse.ArgumentParser(prog="run.sh --lease SECONDS")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--only", action="append", default=[], help="this piece, measured anew; may be given again")
    parser.add_argument("--limit", type=float, default=540, help="seconds of a process of tests at most")
    parser.add_argument("--out", default="bench/results/gpu/lease")
    parser.add_argument("--bin", default="bin")
    parser.add_argument("--device", required=True)
    parser.add_argument("--driver", default="none")
    parser.add_argument("--commit", required=True)
    options = parser.parse_args()
    if unknown := set(options.only) - {p.name for p in PIECES}:
        parser.error(f"there is no piece {', '.join(sorted(unknown))}; the pieces: {' '.join(p.name for p in PIECES)}")
    lease = Lease(options.seconds, options.limit, options.out, options.bin, options.device, options.driver, options.commit)
    pieces = chosen(lease, options.only)
    failed = 0
    while pieces:
        group = [p for p in pieces if p.beside and p.beside == pieces[0].beside] or pieces[:1]
        pieces = [p for p in pieces if p not in group]
        if lease.left() < 5:
            for piece in group:
                lease.ended(piece, Result("cut off", error="no time was left for it",
                                          keep=lease.state.get(piece.name, {}).get("keep", {})), 0)
            continue
        threads = [threading.Thread(target=do, args=(lease, piece)) for piece in group]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lease.pack()
        failed += sum(lease.state.get(p.name, {}).get("status") == "failed" for p in group)
    lease.pack()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
