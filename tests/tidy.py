#!/usr/bin/env python3
"""tidy.py BUILD [--all] [PATH...]: clang-tidy over the production code that BUILD compiles (its
compile_commands.json), or over the named files and folders of it.

The list of checks is .clang-tidy. Without --all the slow ones are left out: the analyzer, which
takes more than half of the time, and two more.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ("core/", "host/", "kernels/cpu/", "plugins/")
GCC_ONLY = ("-fno-gnu-unique", "-fno-tree-pre", "-fpch-preprocess", "-Winvalid-pch")  # clang refuses them
SLOW = "clang-analyzer-*,-bugprone-reserved-identifier,-bugprone-stringview-nullptr"


def sources_of(file):
    """The sources of a unit that CMake made of a folder (SPECD_BY_FOLDER); another file itself."""
    if os.path.basename(os.path.dirname(file)) != "Unity":
        return [file]
    with open(file, encoding="utf-8") as unit:
        return re.findall(r'^#include "([^"]+)"', unit.read(), re.MULTILINE)


def commands(build):
    """{path in the tree: (folder, arguments)}, the first command of each file."""
    found = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = [(source, entry) for entry in json.load(file) for source in sources_of(entry["file"])]
        for source, entry in entries:
            path = os.path.relpath(source, ROOT)
            if not path.startswith(ROOMS):
                continue  # tests, CUDA, and what protoc wrote
            arguments = [source if a == entry["file"] else a for a in shlex.split(entry["command"])]
            while os.path.basename(arguments[0]) == "ccache":
                del arguments[0]
            arguments = [a for a in arguments if a not in GCC_ONLY]
            for i in reversed(range(len(arguments))):  # GCC's precompiled headers
                if arguments[i] == "-include" and arguments[i + 1].endswith("cmake_pch.hxx"):
                    del arguments[i:i + 2]
            found.setdefault(path, (entry["directory"], arguments))
    return found


def run(arguments):
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = os.path.abspath(sys.argv[1])
    everything = "--all" in sys.argv
    chosen = tuple(a for a in sys.argv[2:] if a != "--all")
    found = commands(build)
    database = os.path.join(build, "tidy")
    os.makedirs(database, exist_ok=True)
    with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump([{"file": os.path.join(ROOT, path), "directory": folder, "arguments": arguments}
                   for path, (folder, arguments) in found.items()], file)
    tidy = ["clang-tidy-14", "--quiet", "-p", database, "--extra-arg=-Wno-unknown-warning-option"]
    if not everything:
        tidy.append(f"--checks=-{SLOW}")

    jobs = {path: tidy + [os.path.join(ROOT, path)] for path in found
            if not chosen or path.startswith(chosen)}
    if not jobs:
        sys.exit(f"tidy.py: {build} compiles no file of {', '.join(chosen or ROOMS)}")

    start = time.monotonic()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(run, job): path for path, job in jobs.items()}
        for future in concurrent.futures.as_completed(running):
            status, text = future.result()
            if status != 0:
                failed += 1
                print(f"{running[future]}:\n{text}", flush=True)
    print(f"tidy: {len(jobs)} files, {failed} with findings, {time.monotonic() - start:.0f} s")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
