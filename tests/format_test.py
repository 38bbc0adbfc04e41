#!/usr/bin/env python3
"""format_test.py TREE: clang-format 14 would change no C, C++ or CUDA file of TREE (tables, *.inc,
are left as they are)."""
import os
import shutil
import subprocess
import sys

ROOMS = ("core", "host", "kernels", "plugin_api", "plugins", "sdk", "tests")
ENDINGS = (".c", ".cc", ".cu", ".cuh", ".h")


def main():
    tree = sys.argv[1]
    if not shutil.which("clang-format-14"):
        sys.exit("clang-format-14 is missing; on Debian 12: apt-get install clang-format")
    files = [os.path.join(folder, name) for room in ROOMS
             for folder, _, names in os.walk(os.path.join(tree, room))
             for name in names if name.endswith(ENDINGS)]
    if not files:
        sys.exit(f"no source in {tree}")
    checked = subprocess.run(["clang-format-14", "--dry-run", "-Werror", *files], check=False)
    # Negative control: without it, a clang-format that ignores the style would pass.
    control = subprocess.run(["clang-format-14", "--dry-run", "-Werror",
                              f"--assume-filename={files[0]}"], input=b"int  f( ) {return 1 ;}\n",
                             stderr=subprocess.DEVNULL, check=False)
    if control.returncode == 0:
        sys.exit("clang-format-14 accepts a line that breaks the style")
    if checked.returncode != 0:
        sys.exit("run clang-format-14 -i on the files named above")
    print(f"{len(files)} files")


if __name__ == "__main__":
    main()
