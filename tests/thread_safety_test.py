"""A member is touched only with its mutex held: clang's thread-safety analysis, which every build by clang runs
(-Wthread-safety), is on and sees every mutex of core and host.

Usage: thread_safety_test.py ROOT BUILD. Compiles code that breaks a rule with the options of BUILD: it must be
refused, for each rule, and code that keeps the rules must pass. Refuses what the analysis would not see: a
std::mutex, and a Mutex of a header that guards nothing.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import tidy

OWN_ROOMS = ("core/", "host/")
WRAPPER = "core/base/mutex.h"
WRAPPER_USER = "core/base/log.cc"
STANDARD = re.compile(r"\bstd::(?:recursive_|shared_|timed_)?mutex\b|\bstd::condition_variable")
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


def check_controls(build):
    folder, arguments = tidy.commands(build)[WRAPPER_USER]
    options = arguments[:arguments.index("-o")]

    def refused(body):
        """What clang says against the control with `body` in place of BROKEN; empty = nothing."""
        with tempfile.NamedTemporaryFile("w", suffix=".cc", encoding="utf-8") as file:
            file.write(CONTROL.replace("BROKEN", body))
            file.flush()
            result = subprocess.run([*options, "-fsyntax-only", file.name], cwd=folder, capture_output=True,
                                    text=True, check=False)
        return "" if result.returncode == 0 else result.stderr

    if text := refused(""):
        sys.exit(f"code that keeps the rules was refused:\n{text}")
    for body, expected in BROKEN.items():
        if expected not in (text := refused(body)):
            sys.exit(f"'{body}' was not refused with \"{expected}\": {text or 'no finding'}")
    assert guards_nothing("struct A {\n  Mutex mutex;\n  int count = 0;\n};")
    assert not guards_nothing("struct A {\n  mutable Mutex m_;\n  int n SPECD_GUARDED_BY(m_) = 0;\n};")


def main():
    root, build = sys.argv[1:]
    check_controls(build)
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

    print("\n".join(failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
