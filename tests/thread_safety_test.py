"""clang's thread-safety analysis passes over the tree: a member is touched only with its mutex held.

Usage: thread_safety_test.py ROOT BUILD. Compiles with -Wthread-safety (syntax only) each production
file that locks a mutex of core/base/mutex.h or includes a header with guarded members, which are private
elsewhere; those of a folder together, which takes half of the time. Refuses in core and host what the analysis would not see: a std::mutex, and a Mutex of a header
that guards nothing.
Controls run first: code that breaks a rule must be refused, for each rule, and code that keeps them must
pass.
"""
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import tidy

OWN_ROOMS = ("core/", "host/")
WRAPPER = "core/base/mutex.h"
STANDARD = re.compile(r"\bstd::(?:recursive_|shared_|timed_)?mutex\b|\bstd::condition_variable")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
MUTEX = re.compile(r"^\s*(?:mutable\s+)?(?:specd::)?Mutex\s+(\w+);", re.MULTILINE)
CONTROL = '''
#include "core/base/mutex.h"
struct Counter {
  void add() { const specd::MutexLock lock(mutex); add_locked(); }
  void add_locked() SPECD_REQUIRES(mutex) { ++count; }
  int wait() {
    specd::MutexLock lock(mutex);
    while (count == 0) changed.wait(lock);
    lock.unlock();
    lock.lock();
    return count;
  }
  BROKEN
  specd::Mutex mutex;
  specd::CondVar changed;
  int count SPECD_GUARDED_BY(mutex) = 0;
};
'''
BROKEN = {
    "int bare() { return count; }": "reading variable 'count' requires holding mutex",
    "void write() { count = 1; }": "writing variable 'count' requires holding mutex",
    "void call() { add_locked(); }": "calling function 'add_locked' requires holding mutex",
    "void twice() { specd::MutexLock a(mutex); specd::MutexLock b(mutex); }": "already held",
    "int late() { specd::MutexLock lock(mutex); lock.unlock(); return count; }": "requires holding",
}



def guards_nothing(text):
    """Offsets of the mutexes that no annotation of the file names."""
    return [mutex.start(1) for mutex in MUTEX.finditer(text)
            if not re.search(rf"SPECD_(?:GUARDED_BY|REQUIRES)\([^()]*\b{mutex[1]}\b", text)]


def options_of(path, arguments):
    """What the command that compiles the file says besides the file, its output and its warnings."""
    at = arguments.index("-o") if "-o" in arguments else len(arguments)
    return tuple(a for a in arguments[1:at] + arguments[at + 2:]
                 if a not in ("-c", path) and not a.startswith("-W"))


def analyse(folder, options, paths):
    """The findings in the files, compiled as one; empty = none."""
    result = subprocess.run(
        ["clang++-14", *options, "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", "-x", "c++", "-"],
        input="".join(f'#include "{path}"\n' for path in paths),
        cwd=folder, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr


def check_controls(root):
    def refused(body):
        with tempfile.NamedTemporaryFile("w", suffix=".cc", encoding="utf-8") as file:
            file.write(CONTROL.replace("BROKEN", body))
            file.flush()
            return analyse(root, ["-std=c++20", "-I", root], [file.name])

    if text := refused(""):
        sys.exit(f"code that keeps the rules was refused:\n{text}")
    for body, expected in BROKEN.items():
        if expected not in (text := refused(body)):
            sys.exit(f"'{body}' was not refused with \"{expected}\": {text or 'no finding'}")
    assert guards_nothing("struct A {\n  Mutex mutex;\n  int count = 0;\n};")
    assert not guards_nothing("struct A {\n  mutable Mutex m_;\n  int n SPECD_GUARDED_BY(m_) = 0;\n};")


def main():
    root, build = sys.argv[1:]
    check_controls(root)
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8")
             for room in OWN_ROOMS for path in pathlib.Path(root, room).rglob("*.[hc]*")
             if path.suffix in (".h", ".cc")}
    failed = [f"{path}:{text.count(chr(10), 0, found.start()) + 1}: use specd::Mutex and CondVar of "
              f"{WRAPPER} in place of {found[0]}: the analysis does not see the standard ones"
              for path, text in sorted(texts.items()) if path != WRAPPER
              for found in STANDARD.finditer(text)]
    failed += [f"{path}:{text.count(chr(10), 0, offset) + 1}: no annotation names this mutex"
               for path, text in sorted(texts.items()) if path != WRAPPER and path.endswith(".h")
               for offset in guards_nothing(text)]

    guarded = {path for path, text in texts.items() if "SPECD_GUARDED_BY" in text}
    jobs = {path: command for path, command in tidy.commands(build).items()
            if "MutexLock" in texts.get(path, "") or path in guarded
            or guarded.intersection(INCLUDE.findall(texts.get(path, "")))}
    if not jobs:
        sys.exit(f"{build} compiles no file with a mutex")
    together = collections.defaultdict(list)
    for path, (folder, arguments) in jobs.items():
        source = os.path.join(tidy.ROOT, path)
        together[folder, options_of(source, arguments), os.path.dirname(path)].append(source)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed += filter(None, pool.map(
            lambda job: analyse(job[0][0], job[0][1], job[1]), together.items()))
    print("\n".join(failed))
    print(f"thread safety: {len(jobs)} files, {len(failed)} with findings")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
