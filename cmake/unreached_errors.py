#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the errors of the library that no test throws: statements `fail<...>(...)` that a run of a build with
--coverage never came to.

unreached_errors.py SOURCES BUILD: prints them by file, then their number and their part of all.
"""
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys

FOLDERS = ("core", "kernels", "autograd", "dist", "nn", "models", "train")
SITE = re.compile(r"\bfail<\w+>\(")


def sources_of(root):
    for folder in FOLDERS:
        for path, folders, names in os.walk(os.path.join(root, folder)):
            folders[:] = [f for f in folders if not f.startswith("_")]  # templates, which nothing compiles
            for name in names:
                if name.endswith((".cpp", ".h")) and not name.endswith("_test.cpp"):
                    yield os.path.relpath(os.path.join(path, name), root)


def sites_of(text):
    """(first line, last line) of each statement, from 1."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if SITE.search(line.split("//")[0]):
            end = next((j for j in range(i, len(lines)) if ";" in lines[j]), i)
            yield i + 1, end + 1


def counts_of(notes, root):
    """{file: {line: count}} of one object; an object that no program loaded counts nothing."""
    text = subprocess.run(["gcov", "--json-format", "--stdout", notes], capture_output=True, text=True, check=True,
                          cwd=os.path.dirname(notes)).stdout
    found = {}
    for report in text.splitlines():
        for file in json.loads(report)["files"]:
            name = os.path.relpath(os.path.realpath(os.path.join(root, file["file"])), root)
            if name.startswith(FOLDERS):
                lines = found.setdefault(name, collections.Counter())
                for line in file["lines"]:
                    lines[line["line_number"]] += line["count"]
    return found


def main(root, build):
    notes = [os.path.join(path, name) for path, _, names in os.walk(build) for name in names if name.endswith(".gcno")]
    counts = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        for found in workers.map(lambda name: counts_of(name, root), notes):
            for file, lines in found.items():
                counts[file].update(lines)
    sites = unreached = 0
    for file in sorted(sources_of(root)):
        with open(os.path.join(root, file), encoding="utf-8") as source:
            text = source.read()
        for first, last in sites_of(text):
            sites += 1
            if any(counts[file][line] for line in range(first, last + 1)):
                continue
            unreached += 1
            print(f"{file}:{first}: {' '.join(text.splitlines()[first - 1].split())}")
    print(f"{unreached} of {sites} errors are thrown by no test, {100 * unreached / max(1, sites):.1f} %")


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2]))
