#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the compiler reports of device kernels (nvcc -Xptxas=-v) against kernels/budgets.txt.

check_kernels.py LOG BUDGETS SOURCE...: a kernel may not spill, unless a line allows so many bytes,
and may not take more registers than a line says. If the report has all sources, each line must fit
some kernel. A build that compiled nothing has no report and is not checked.
"""
import os
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
SPILL = re.compile(r"(\d+) bytes spill stores")
USED = re.compile(r"Used (\d+) registers")


def kernels_of(log):
    """(mangled name, architecture, bytes of spill, registers) of each kernel."""
    found, name = [], None
    for line in log:
        if entry := ENTRY.search(line):
            name, spill = entry.groups(), 0
        elif name and (stores := SPILL.search(line)):
            spill = int(stores[1])
        elif name and (used := USED.search(line)):
            found.append((*name, spill, int(used[1])))
            name = None
    return found


def readable(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [re.sub(r"\(anonymous namespace\)::|_GLOBAL__N_\w+::|tessera::(op::)?(mma_attention::)?|^void ", "", line)
            .split("(")[0] for line in text.splitlines()]


def budgets_of(path):
    rows = []
    for line in open(path):
        if line.strip() and not line.startswith("#"):
            pattern, spill, registers, _ = (part.strip() for part in line.split(" | "))
            rows.append((re.compile(pattern), int(spill), int(registers)))
    return rows


def main():
    log, path, *sources = sys.argv[1:]
    kernels, rows = kernels_of(open(log, errors="replace")), budgets_of(path)
    faults, fits = [], set()
    for (mangled, arch, spill, registers), name in zip(kernels, readable([k[0] for k in kernels])):
        row = next((r for r in rows if r[0].fullmatch(name)), None)
        fits.add(row)
        most_spill, most_registers = row[1:] if row else (0, 255)
        if spill > most_spill:
            faults.append(f"{name}, {arch}: spills {spill} bytes, expected at most {most_spill}")
        if registers > most_registers:
            faults.append(f"{name}, {arch}: takes {registers} registers, expected at most {most_registers}")
    tags = {tag for k in kernels for tag in re.findall(r"_\d+_([a-z]\w*?)_cu_", k[0])}
    whole = {os.path.basename(source).removesuffix(".cu") for source in sources} <= tags
    faults += [f"{path}: no kernel is {row[0].pattern}" for row in rows if whole and row not in fits]
    print("\n".join([*faults, f"{len(kernels)} kernels checked against {path}: {len(faults)} faults"]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
