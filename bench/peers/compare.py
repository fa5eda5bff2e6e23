# SPDX-License-Identifier: Apache-2.0
"""Tessera beside PyTorch in one run: both sides by turns, a table of ratios, the figures as JSON.

    build/venv/bin/python bench/peers/compare.py [ops] [moe] [host_cost] [train_step]
                                                 [dist_cost] [collectives] [trainer] [parallel]
                                                 [checkpoint]
                                                 [--threads 1,2]

The ratio is Tessera's time over PyTorch's: below 1, Tessera is faster. Each side counts with the
best of its rounds.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

import checkpoint
import collectives
import parallel
import trainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = "bench/peers"
NAMES = ("ops", "moe", "host_cost", "train_step", "dist_cost", "collectives", "trainer",
         "parallel", "checkpoint")
ON_TWO_RANKS = {"collectives": collectives, "parallel": parallel, "checkpoint": checkpoint}
FIGURES = ("percent_of_ceiling", "percent_of_gemm_ceiling", "percent_in_products",
           "tokens_per_second", "peak_rss_mib", "rss_before_model_mib", "peak_tensors_mib",
           "forward_ms", "backward_ms", "optimizer_ms")
# What train_step runs with, on both sides.
SETTINGS = [["--model", model, "--batch", batch, "--seq", "512", "--precision", precision]
            for model, batch in (("debugmodel", "8"), ("124M", "2"))
            for precision in ("float32", "mixed", "bfloat16")]
TURN = 12  # cases of ops that one side runs before the other
CEILINGS = ("gemm_f32_gflops", "gemm_bf16_gflops", "copy_gbytes")


def run(command, stdin=None):
    """Standard output of `command`, run in the repository's root."""
    result = subprocess.run(command, cwd=ROOT, input=stdin, text=True, capture_output=True)
    if result.returncode != 0:
        sys.exit(f"compare: {' '.join(command)} failed:\n{result.stderr.strip()}")
    return result.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Side:
    """The figures of one program: the best of the rounds for each key."""

    def __init__(self):
        self.best, self.rounds = {}, {}

    def add(self, rows):
        for row in rows:
            key = row.get("case", row.get("name"))
            for field in ("time_us", "time_grad_us"):
                if field in row:
                    self.rounds.setdefault((key, field), []).append(round(row[field], 4))
            if "time_us" in row and row["time_us"] <= self.best.get(key, row)["time_us"]:
                self.best[key] = row

    def time(self, key, field="time_us"):
        return min(self.rounds.get((key, field), [None]), key=lambda t: t or 0)


class Comparison:
    """The runs of one benchmark with one number of threads."""

    def __init__(self, name, threads, args):
        self.name, self.threads = name, threads
        self.python, self.about, self.profile = args.python, {}, []
        self.ours, self.theirs, self.compiled = Side(), Side(), Side()
        common = ["--threads", str(threads)] + (args.steps if name == "train_step" else [])
        binary = f"{args.bin}/bench_{name}"
        self.commands = [[binary, *common],
                         ["python", f"{PEERS}/{name}.py", *common]]
        settings = [[]]
        if name == "train_step":
            settings = [s for s in SETTINGS if re.search(args.settings, " ".join(s))]
        if name == "ops":
            self.run_ops(run([binary, "--list-cases"]), args)
            return
        for number in range(args.rounds):
            for setting in settings:
                print(f"{' '.join([name, *setting])}, threads {threads}: round {number + 1} of "
                      f"{args.rounds}", file=sys.stderr)
                self.run_ours(setting)
                self.run_theirs(setting)
                if args.compile and name == "train_step":
                    self.run_theirs([*setting, "--compile"])

    def run_ops(self, listed, args):
        """A few cases at a time, both sides by turns, so that a slow minute slows both."""
        cases = {json.loads(line)["case"]: line + "\n" for line in listed.splitlines()}
        wanted = [case for case in cases if re.search(args.filter, case)]

        def turns(some, label):
            for at in range(0, len(some), TURN):
                print(f"ops, threads {self.threads}, {label}: {at} of {len(some)} cases",
                      file=sys.stderr)
                turn = some[at:at + TURN]
                # Google Benchmark's regular expressions know no escaped brackets.
                names = "|".join(re.sub(r"[.$*+?()\[{|]", r"[\g<0>]", case) for case in turn)
                self.run_ours([f"--benchmark_filter=^({names})"])
                self.run_theirs([], "".join(cases[case] for case in turn))

        for number in range(args.rounds):
            turns(wanted, f"round {number + 1} of {args.rounds}")
        for number in range(args.again):
            turns(self.slower(), f"slower ones again, {number + 1} of {args.again}")

    def note(self, rows):
        for row in rows:
            for field in CEILINGS:
                if field in row:
                    self.about[field] = max(self.about.get(field, 0), round(row[field], 1))
            if "torch" in row:
                self.about["torch"] = row["torch"]

    def run_ours(self, setting):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            run([*self.commands[0], *setting, "--json", file.name])
            rows = json_lines(pathlib.Path(file.name).read_text())
        self.note(rows)
        names = [row["name"] for row in rows if "time_us" in row and "name" in row]
        self.profile = [p for p in self.profile if p["of"] not in names]
        self.profile += [row | {"of": names[0]} for row in rows if row.get("name") == "profile"]
        self.ours.add(row for row in rows if "time_us" in row)

    def slower(self):
        """The cases of which either time is above PyTorch's."""
        return list(dict.fromkeys(
            key for key, field in self.ours.rounds
            if (other := self.theirs.time(key, field)) and self.ours.time(key, field) > other))

    def run_theirs(self, setting, cases=None):
        script = [self.python, *self.commands[1][1:], *setting]
        rows = json_lines(run(script, cases))
        for row in rows:
            if "error" in row:
                print(f"compare: PyTorch, {row.get('case')}: {row['error']}", file=sys.stderr)
        self.note(rows)
        side = self.compiled if "--compile" in setting else self.theirs
        side.add(row for row in rows if "time_us" in row)

    def rows(self):
        for key, row in self.ours.best.items():
            out = {"name": key, "threads": self.threads}
            for field in FIGURES:
                for side, source in (("", row), ("pytorch_", self.theirs.best.get(key, {})),
                                     ("compiled_", self.compiled.best.get(key, {}))):
                    if field in source:
                        out[side + field] = round(source[field], 1)
            for field, label in (("time_us", "ratio"), ("time_grad_us", "ratio_grad")):
                mine, other = self.ours.time(key, field), self.theirs.time(key, field)
                if mine:
                    out[field] = self.ours.rounds[key, field]
                if other:
                    out["pytorch_" + field] = self.theirs.rounds[key, field]
                if mine and other:
                    out[label] = round(mine / other, 3)
            if compiled := self.compiled.time(key):
                out["ratio_compiled"] = round(self.ours.time(key) / compiled, 3)
            yield out


def show(rows):
    figure = lambda times: f"{min(times):12.2f}" if times else " " * 12
    ratio = lambda value: f"{value:7.2f}" if value else " " * 7
    width = max((len(row["name"]) for row in rows), default=0)
    heads = f"{'us':>12} {'PyTorch us':>12} {'ratio':>7}"
    print(f"{'with gradient:':>{width + 57}}\n{'':{width}} {'threads':>7} {heads} {heads}")
    for row in rows:
        print(f"{row['name']:{width}} {row['threads']:7}",
              figure(row.get("time_us")), figure(row.get("pytorch_time_us")),
              ratio(row.get("ratio")), figure(row.get("time_grad_us")),
              figure(row.get("pytorch_time_grad_us")), ratio(row.get("ratio_grad")))
        if "tokens_per_second" in row:
            for side, of in (("Tessera", ""), ("PyTorch", "pytorch_"),
                             ("PyTorch compiled", "compiled_")):
                if of + "tokens_per_second" not in row:
                    continue
                print(f"  {side}: {row[of + 'tokens_per_second']:.0f} tokens/s, "
                      f"{row[of + 'peak_rss_mib']:.0f} MiB resident at most")
    slower = [(row[label], row["name"] + suffix, row["threads"]) for row in rows
              for label, suffix in (("ratio", ""), ("ratio_grad", " with gradient"))
              if row.get(label, 0) > 1]
    print(f"\nslower than PyTorch: {len(slower)}")
    for value, name, threads in sorted(slower, reverse=True):
        print(f"  {value:6.2f}x  {name}, threads {threads}")


def cpu_model():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit():
    try:
        head = run(["git", "rev-parse", "--short=12", "HEAD"]).strip()
        changed = run(["git", "status", "--porcelain", "--untracked-files=no", "--", ".",
                       ":!bench/results"])
        return head + ("+changes" if changed else "")
    except SystemExit:
        return None


def about_run(load):
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"date": now.isoformat(timespec="minutes"), "commit": commit(),
            "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "load_at_start": load}}


def write(path, comparisons, rows, load):
    """One row a line, so that a diff of two runs can be read."""
    about = about_run(load) | {
        "runs": [{"threads": c.threads, **c.about,
                  "commands": [" ".join(command) for command in c.commands]}
                 for c in comparisons]}
    profile = [row for row in comparisons[-1].profile if row["percent"] >= 0.5]
    lists = {"rows": rows} | ({"profile": profile} if profile else {})
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in about.items()]
    for key, values in lists.items():
        parts.append(f'"{key}": [\n' + ",\n".join(" " + json.dumps(row) for row in values) + "\n]")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name",
                        help=f"of {', '.join(NAMES)}; all when none is given")
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}", help="numbers, by commas")
    parser.add_argument("--rounds", type=int, default=2, help="times that each side runs, by turns")
    parser.add_argument("--again", type=int, default=0,
                        help="ops only: times that both sides repeat the cases found slower, since "
                             "a busy moment makes either side slow")
    parser.add_argument("--filter", default="",
                        help="ops only: a regular expression of case names; nothing is written")
    parser.add_argument("--steps", help="train_step only: measured steps")
    parser.add_argument("--settings", default="",
                        help="train_step only: a regular expression of settings")
    parser.add_argument("--compile", action="store_true",
                        help="train_step only: torch.compile too, which takes minutes to start")
    parser.add_argument("--bin", default="build/release/bin", help="folder of the programs")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has PyTorch")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/cpu",
                        help="folder of the figures")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    args.steps = ["--steps", args.steps] if args.steps else []
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"compare: the load is {load:.1f}; figures of a busy machine say little",
              file=sys.stderr)
    for name in args.names or NAMES:
        if name in ON_TWO_RANKS:  # with sides, and so a table, of their own
            ON_TWO_RANKS[name].compare(args.bin, args.rounds, about_run(load), args.out.resolve())
            continue
        threads = dict.fromkeys(int(t) for t in args.threads.split(","))
        if name == "trainer":  # no peer but the bare step
            trainer.compare(args.bin, args.rounds, max(threads), about_run(load),
                            args.out.resolve())
            continue
        comparisons = []
        for t in threads:  # written after each, so that a run that is cut short keeps something
            comparisons.append(Comparison(name, t, args))
            rows = [row for c in comparisons for row in c.rows()]
            if not (name == "ops" and args.filter):
                write(args.out.resolve() / f"{name}.json", comparisons, rows, load)
        show(rows)


if __name__ == "__main__":
    main()
