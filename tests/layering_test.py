"""The rooms know only the rooms below them: greps every include of the tree.

Usage: layering_test.py ROOT. Prints each violation as file:line and exits 1 if there is one.
A negative control runs first: a known bad include must be found.
"""
import pathlib
import re
import sys

# room -> prefixes it may include, besides its own
ALLOWED = {
    "plugin_api": [],
    "kernels": [],
    "sdk": ["specd/plugin_api/"],
    "plugins": ["specd/plugin_api/", "specd/sdk/"],
    "core": ["specd/plugin_api/", "specd/kernels/"],
    "host": ["core/engine.h", "core/rank_process.h", "core/runner/runner.h", "core/base/"],
}
# The measuring program also uses what is below engine.h: it writes checkpoints and times forwards.
ALLOWED_IN = {"host/bench/": ["core/model/", "core/kv/", "core/device/"]}
# Inside core, a folder uses only those before it; engine.h and the folder engine come last.
CORE_ORDER = ["base", "chat/jinja", "chat", "device", "text", "kv", "model", "request", "sched",
              "plugin/instance", "plugin/bundle", "plugin/beside", "plugin/process", "spec", "draft", "services",
              "runner", "ranks",
              "step"]
# Draft models are the same for any caller: services checks and translates what plugins pass.
BLIND_TO_PLUGINS = ["core/draft/"]
# A folder or header of core that only some may include; of several matches the longest counts.
USERS = {"core/chat/jinja/": ["core/chat/jinja/"],
         "core/chat/jinja/template.h": ["core/chat/"],
         "core/chat/chat_template.h": ["core/chat/", "core/engine/"]}
OURS = re.compile(r"^(specd/|core/|kernels/|host/|plugins/|sdk/|plugin_api/|tests/)")
FORBIDDEN_IN_CORE = re.compile(r"^(grpc|google/protobuf|yaml-cpp|boost/beast|prometheus)")
# Sessions serve any transport, so they know none.
TRANSPORTS = re.compile(r"^(grpc|google/protobuf|boost/(asio|beast)|host/(rpc|http|proto)/)")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
SUFFIXES = {".h", ".cc", ".c", ".cu", ".cuh", ".inc"}


def own_prefixes(room):
    return {"plugin_api": ["specd/plugin_api/"], "kernels": ["specd/kernels/", "kernels/"],
            "sdk": ["specd/sdk/"]}.get(room, [room + "/"])


def core_rank(path):
    for rank, folder in enumerate(CORE_ORDER):
        if path.startswith(f"core/{folder}/"):
            return rank
    return len(CORE_ORDER)


def violation(room, path, include):
    """Why this include may not be, or None."""
    if room == "core" and FORBIDDEN_IN_CORE.match(include):
        return "core never sees this library"
    if path.startswith("host/serve/") and TRANSPORTS.match(include):
        return "sessions know no transport"
    if not OURS.match(include):
        return None
    if room == "core" and include.startswith("core/"):
        if core_rank(include) > core_rank(path):
            return "a room of core includes one above it"
        hidden = max((p for p in USERS if include.startswith(p)), key=len, default=None)
        if hidden and not any(path.startswith(user) for user in USERS[hidden]):
            return f"only {', '.join(USERS[hidden])} may include this"
        return None
    if include.startswith("specd/plugin_api/") and path.startswith(tuple(BLIND_TO_PLUGINS)):
        return "this room of core knows no plugin"
    allowed = own_prefixes(room) + ALLOWED[room]
    for folder, more in ALLOWED_IN.items():
        if path.startswith(folder):
            allowed = allowed + more
    if any(include.startswith(p) for p in allowed):
        return None
    return f"{room} may not know this"


def main():
    root = pathlib.Path(sys.argv[1])
    assert violation("kernels", "kernels/cpu/x.cc", "core/base/status.h")
    assert violation("core", "core/kv/x.cc", "core/sched/scheduler.h")
    assert violation("plugins", "plugins/a/x.cc", "core/engine.h")
    assert violation("core", "core/services/x.cc", "grpcpp/grpcpp.h")
    assert violation("host", "host/x.cc", "core/model/transformer.h")
    for transport in ["grpcpp/grpcpp.h", "google/protobuf/message.h", "boost/asio/post.hpp",
                      "host/rpc/wire.h", "host/http/http_server.h", "host/proto/specd.pb.h"]:
        assert violation("host", "host/serve/x.cc", transport)
    assert not violation("host", "host/rpc/x.cc", "grpcpp/grpcpp.h")
    assert not violation("host", "host/serve/x.cc", "host/base/task_queue.h")
    assert violation("core", "core/draft/x.cc", "specd/plugin_api/services/model.h")
    assert violation("core", "core/draft/x.cc", "core/services/model.h")
    assert not violation("core", "core/services/x.cc", "core/kv/page_pool.h")
    assert violation("core", "core/chat/jinja/x.cc", "core/text/tokenizer.h")
    assert violation("core", "core/chat/x.cc", "core/chat/jinja/value.h")
    assert violation("core", "core/engine/x.cc", "core/chat/jinja/template.h")
    assert violation("core", "core/step/x.cc", "core/chat/chat_template.h")
    assert not violation("core", "core/chat/x.cc", "core/chat/jinja/template.h")
    found, files = 0, 0
    for room in ALLOWED:
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            files += 1
            path = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                why = violation(room, path, match.group(1)) if match else None
                if why:
                    print(f"{path}:{number}: includes {match.group(1)}: {why}")
                    found += 1
    assert files > 50, f"only {files} files found below {root}"
    print(f"{files} files, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
