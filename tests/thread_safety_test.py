"""clang's thread-safety analysis passes over the tree: a member is touched only with its mutex held.

Usage: thread_safety_test.py ROOT BUILD. Compiles with -Wthread-safety (syntax only) each production
file that names a mutex of core/base/mutex.h or includes a header with guarded members. Refuses in core
and host what the analysis would not see: a std::mutex; a class with a Mutex that no annotation names;
and a member below the Mutex without an annotation, because by convention what is above it is touched
by one thread or never changes. Controls run first: code that breaks a rule must be refused, for each
rule, and code that keeps them must pass.
"""
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
MUTEX = re.compile(r"^\s*(?:mutable\s+)?(?:specd::)?Mutex\s+(\w+);")
CLASS = re.compile(r"\b(?:class|struct)\s+(?:SPECD_\w+\((?:[^()]|\([^()]*\))*\)\s*)?([\w:]+)[^;(){}]*$")
# Members that need no annotation below a mutex: they synchronize themselves, or only the owner's
# constructor and destructor touch them.
ALONE = re.compile(r"^(?:static\b|using\b|friend\b|const\b(?!.*\*)|(?:mutable\s+)?(?:specd::)?(?:Mutex|CondVar)\b|"
                   r"std::atomic\b|std::thread\b|std::vector<std::thread>)")
# Class::member, and why it is not annotated.
UNGUARDED = {
    "RouteControl::board_": "has a mutex of its own",
    "Sessions::prompts_": "a TaskQueue, which has a mutex of its own",
}
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


# Classes, and what must be found in them.
UNANNOTATED = [
    ("struct A {\n  Mutex mutex;\n  int count = 0;\n};", ["no annotation names A::mutex", "A::count"]),
    ("class A : public B {\n  int n() SPECD_REQUIRES(mutex_);\n  mutable Mutex mutex_;\n"
     "  std::map<int, std::string> a_ SPECD_GUARDED_BY(mutex_), b_ SPECD_GUARDED_BY(mutex_);\n"
     "  std::deque<int> c_;  // a comment\n};", ["A::c_"]),
    ("struct A {\n  Mutex mutex;\n  CondVar changed;\n  std::thread thread;\n};\n"
     "struct B {\n  Mutex mutex;\n  int n\n      SPECD_GUARDED_BY(mutex) = 0;\n};",
     ["no annotation names A::mutex"]),
    ("void f() {\n  struct State {\n    Mutex mutex;\n    bool done SPECD_GUARDED_BY(mutex) = false;\n"
     "    bool late = false;\n  };\n  Mutex mutex;\n  int local = 0;\n}", ["State::late"]),
    ("struct A {\n  Mutex mutex;\n  int n SPECD_GUARDED_BY(mutex){0};\n  struct Row { int m; };\n"
     "  void grow(int by) { n += by; }\n  int get() const;\n  std::function<void()> f_;\n"
     "  const int32_t max_;\n};", ["A::f_"]),
]


def members_of(body):
    """The statements of a class's body, without what is in braces, each with its offset."""
    depth, begin, statement = 0, None, ""
    for at, char in enumerate(body):
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            # A function's or a class's body ends the statement; an initializer does not.
            if depth == 0 and ("(" in re.sub(r"SPECD_\w+\([^()]*\)|<[^<>;]*>", "", statement)
                               or re.match(r"\s*(?:class|struct|enum|union)\b", statement)):
                begin, statement = None, ""
        elif depth == 0 and char == ";":
            if begin is not None:
                yield begin, statement.strip()
            begin, statement = None, ""
        elif depth == 0:
            if begin is None and not char.isspace():
                begin = at
            if begin is not None:
                statement += char


def unannotated(text):
    """Offsets at which the members of a class with a Mutex need an annotation, with what is wrong."""
    text = re.sub(r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*(?:.|\n)*?\*/',
                  lambda found: " " * len(found[0]), text)
    found, opened = [], []
    for at, char in enumerate(text):
        if char == "{":
            opened.append(at)
        elif char == "}" and opened:
            begin = opened.pop()
            name = CLASS.search(text, text.rfind(";", 0, begin) + 1, begin)
            if name is None:
                continue
            members = [(begin + 1 + offset, re.sub(r"^(?:(?:public|private|protected):\s*)+", "", each))
                       for offset, each in members_of(text[begin + 1:at])]
            mutexes = [(offset, mutex[1]) for offset, each in members
                       if (mutex := MUTEX.match(each + ";"))]
            for offset, mutex in mutexes:
                annotation = rf"SPECD_(?:GUARDED_BY|REQUIRES)\([^()]*\b{mutex}\b[^()]*\)"
                if f"{name[1]}::{mutex}" not in UNGUARDED and not re.search(annotation, text[begin:at]):
                    found.append((offset, f"no annotation names {name[1]}::{mutex}"))
            for offset, each in members:
                bare = re.sub(r"<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>", "", each.split("=")[0]).strip()
                member = re.search(r"(\w+)$", bare)
                if (not mutexes or offset < mutexes[0][0] or ALONE.match(each) or "SPECD_" in each
                        or "(" in bare or member is None or re.match(r"(?:class|struct|enum)\b", bare)):
                    continue
                if (path := f"{name[1]}::{member[1]}") not in UNGUARDED:
                    found.append((offset, f"{path} is below a Mutex and has no SPECD_GUARDED_BY"))
    return found


def analyse(folder, arguments):
    """The findings in one file, given the command that compiles it; empty = none."""
    at = arguments.index("-o") if "-o" in arguments else len(arguments)
    kept = [a for a in arguments[1:at] + arguments[at + 2:] if a != "-c" and not a.startswith("-W")]
    result = subprocess.run(
        ["clang++-14", *kept, "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety"],
        cwd=folder, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr


def check_controls(root):
    def refused(body):
        with tempfile.NamedTemporaryFile("w", suffix=".cc", encoding="utf-8") as file:
            file.write(CONTROL.replace("BROKEN", body))
            file.flush()
            return analyse(root, ["clang++-14", "-std=c++20", "-I", root, file.name])

    if text := refused(""):
        sys.exit(f"code that keeps the rules was refused:\n{text}")
    for body, expected in BROKEN.items():
        if expected not in (text := refused(body)):
            sys.exit(f"'{body}' was not refused with \"{expected}\": {text or 'no finding'}")
    for body, expected in UNANNOTATED:
        found = [what for _, what in unannotated(body)]
        if len(found) != len(expected) or not all(e in f for e, f in zip(expected, found)):
            sys.exit(f"expected {expected} and found {found} in\n{body}")


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
    failed += [f"{path}:{text.count(chr(10), 0, offset) + 1}: {what}"
               for path, text in sorted(texts.items()) if path != WRAPPER
               for offset, what in unannotated(text)]

    guarded = {path for path, text in texts.items() if "SPECD_GUARDED_BY" in text}
    jobs = {path: command for path, command in tidy.commands(build).items()
            if "MutexLock" in texts.get(path, "") or path in guarded
            or guarded.intersection(INCLUDE.findall(texts.get(path, "")))}
    if not jobs:
        sys.exit(f"{build} compiles no file with a mutex")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed += filter(None, pool.map(lambda job: analyse(*job), jobs.values()))
    print("\n".join(failed))
    print(f"thread safety: {len(jobs)} files, {len(failed)} with findings")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
