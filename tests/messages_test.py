"""Messages are for people: no code looks into a message's text to decide something.

Usage: messages_test.py ROOT. Prints each place of core and host that searches, cuts or compares the
text of a Status (or a report's reason) as file:line, and exits 1 if there is one. Code that decides
looks at code() and field(). What a helper gets or a struct keeps is known by its name only: outside
the rooms whose subject is text, nothing called text, message, why, reason or words is looked into.
A negative control runs first: planted ones must be found.
"""
import pathlib
import re
import sys

ROOMS = ["core", "host"]
SUFFIXES = {".h", ".cc"}
# Here a `text` is a file, an argument or a string of a template, and not a message.
ABOUT_TEXT = ("core/base/", "core/chat/", "core/model/", "core/plugin/bundle/", "core/text/",
              "host/base/", "host/bench/workload.cc", "host/config/")
# Functions that may look, by file.
ALLOWED = {
    # A plugin names the key of its configuration in the text that it gives to report(): "KEY: reason"
    # (SPECD_E_CONFIG in plugin_api's types.h). The text comes from outside, and becomes a field here.
    "core/plugin/instance/instance.cc": ["key_of_report", "plugin_status"],
    # What a plugin reports twice in a row is told once. Nothing else depends on it.
    "core/plugin/instance/host_context.cc": ["append_clean"],
}
# What gives the words of an error, and what reports call them.
ERROR = r"(?:[Ss]tatus|[Ee]rror|[Ff]ailure|refus\w*|[Ww]hy)\w*(?:\(\))?(?:\.|->)"
WORDS = (rf"(?:\b\w*{ERROR}(?:text|to_string)\(\)|\b(?:error_)?message\(\)|"
         r"\b(?:reason|last_problem)\b)")
LOOK = (r"(?:find(?:_first_of|_last_of|_first_not_of)?|rfind|starts_with|ends_with|contains|compare|"
        r"substr)\s*\(")
FUNCTION = (r"\b(?:starts_with|begins_with|ends_with|contains|regex_\w+|RE2::\w+|strstr|strcmp|strncmp|"
            r"std::search|std::equal)\s*\(")
# Compared with an enumerator, with no pointer, or with an iterator is not compared as text.
NO_TEXT = r"(?!\s*(?:nullptr\b|(?:\w+::)*(?:k[A-Z]\w*|[A-Z][A-Z_]+)\b|[\w.>-]*\bend\(\)))"
DIRECT = [
    re.compile(rf"{WORDS}\s*\.\s*{LOOK}"),       # status.message().find(
    re.compile(rf"{WORDS}\s*(?:==|!=){NO_TEXT}"),  # status.message() == "..."
    re.compile(rf"(?:==|!=)\s*[\w.>()-]*{WORDS}"),
    re.compile(rf"{FUNCTION}[^;]*{WORDS}"),      # starts_with(status.message(), ...)
]
# A name for the words, declared or assigned: looked into below, in the same function.
ALIAS = re.compile(rf"\b(?:(?:std::string|std::string_view|auto)\s*&?\s+(\w+)\s*[=({{]|(\w+)\s*\+?=(?!=))"
                   rf"[^;]*?{WORDS}\s*[)}}]*\s*;")
NAMED = r"\b(?:text|message|why|reason|words)_?"
BY_NAME = [
    re.compile(rf"{NAMED}\s*(?:\.|->)\s*{LOOK}"),
    re.compile(rf"{NAMED}\s*(?:==|!=){NO_TEXT}"),
    re.compile(rf"(?:==|!=)\s*(?:\w+(?:\.|->))*{NAMED}(?!\s*(?:[\w(.\[]|->|::))"),
    re.compile(rf"{FUNCTION}\s*(?:\w+(?:\.|->))*{NAMED}\s*,"),
]
FUNCTION_END = re.compile(r"^\}", re.MULTILINE)


def without_comments(text):
    """Same lines, no comments; strings stay, so that their `//` does not end a line."""
    token = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*(?:.|\n)*?\*/')
    return token.sub(lambda m: re.sub(r"[^\n]", "", m[0]) if m[0].startswith("/") else m[0], text)


def looks(text, by_name=True, allowed=()):
    """Lines at which code looks into a message, with their numbers."""
    text = without_comments(text)
    for function in allowed:  # its lines stay, empty
        text, n = re.subn(rf"^\S.*\b{function}\([^;]*?\{{\n(?:.*\n)*?\}}$",
                          lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE)
        assert n == 1, f"{n} functions are called {function}, which may look into a text"
    found = [match.start() for rule in DIRECT + (BY_NAME if by_name else [])
             for match in rule.finditer(text)]
    for alias in ALIAS.finditer(text):
        end = FUNCTION_END.search(text, alias.end())
        body = text[alias.end():end.start() if end else len(text)]
        name = re.escape(alias[1] or alias[2])
        for rule in (rf"\b{name}\s*\.\s*{LOOK}", rf"\b{name}\s*(?:==|!=){NO_TEXT}",
                     rf"(?:==|!=)\s*{name}\b(?!\s*(?:[(.\[]|->|::))", rf"{FUNCTION}\s*{name}\b"):
            found += [alias.end() + match.start() for match in re.finditer(rule, body)]
    lines = sorted({text.count("\n", 0, at) for at in found})
    return [(line + 1, text.splitlines()[line].strip()) for line in lines]


PLANTED = [
    'if (status.message().find("plugin") != std::string::npos) return 1;',
    'if (made.status().message()\n        .starts_with("routes.")) return;',
    'const std::string& text = status.message();\n  if (begins_with(text, "plugin directory ")) path = "p";',
    'std::string message = status.text();\n  if (message.rfind(shown, 0) == 0) message = name;',
    'if (status.message() == "gone") return;',
    'if ("gone" == status.message()) return;',
    'if (std::regex_search(status.message(), match, kKey)) return;',
    'if (status.error_message().substr(0, 3) == "max") return;',
    'if (report.reason.find("reaches guarantee") != std::string::npos) return;',
    'void g(const std::string& reason) {\n  if (reason.find("reaches guarantee") != npos) return;',
    'if (result.status().to_string().ends_with(", not a verifier")) return;',
    # A helper, a late assignment, a member.
    '}\nbool gone(const std::string& text) {\n  return text.starts_with("no route");',
    '}\nbool gone(std::string_view words) {\n  return words.substr(0, words.find(\':\')) == "route";',
    'std::string t;\n  if (!made.ok()) t = made.status().message();\n  if (t.find("gone") == 0) return;',
    'last_ = status.to_string();\n  if (last_ == "gone") return;',
    'if (call.text.find("gone") != std::string::npos) return;',
    'if (call->message == expected) return;',
    'if ("gone" == call.why) return;',
]
FINE = [
    'if (status.field() == "request_id") return;',
    'std::string message = status.text();\n  if (message.size() > kMax) message.resize(kMax);',
    'return usage(options.status().message());',
    '// status.message().find("x") would be wrong\n',
    'log("cannot: " + status.message() + (value == 3 ? "a" : "b"));',
    'if (status.ok() != other.ok()) return status.message();',
    'const std::string line = file.text();\n  if (line.find("\\n") == 0) return;',
    'wire.set(reason == FinishReason::kStop ? v1::STOP : v1::OTHER);',
    'if (reason == v1::FINISH_REASON_STOP) return;',
    'wire.set(reason == kStop);',
    "if (c == '\"') return;  // when message == \"x\"",
    'if (!write_all(out, status.message())) return;',
    'return text == call.sequence_text.end() ? "" : text->second;',
    'if (text == nullptr || !message.empty()) return;',
    'if (!options.ok()) return usage(options.status().message());',
    'if (of[s].message().empty()) continue;',
    'std::find(words.begin(), words.end(), word) == words.end();',
]
SUBJECT = 'const std::string text = file.text();\n  if (text.find("\\n") == 0) return;'
KEY = """Status key_of_report(const std::string& text,
                      int n) {
  if (text.find(": ") == n) return {};
  return {};
}
bool other(const std::string& text) { return text == "gone"; }
"""


def main():
    for planted in PLANTED:
        assert looks("void f() {\n  " + planted + "\n}\n"), planted
    for fine in FINE:
        assert not looks("void f() {\n  " + fine + "\n}\n"), fine
    assert looks(SUBJECT) and not looks(SUBJECT, by_name=False)
    assert [line for line, _ in looks(KEY)] == [3, 6]
    assert [line for line, _ in looks(KEY, allowed=["key_of_report"])] == [6]
    root = pathlib.Path(sys.argv[1])
    found, files = 0, 0
    for room in ROOMS:
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            files += 1
            path = file.relative_to(root).as_posix()
            for line, text in looks(file.read_text(encoding="utf-8"),
                                    not path.startswith(ABOUT_TEXT), ALLOWED.get(path, [])):
                print(f"{path}:{line}: looks into a message: {text}")
                found += 1
    assert files > 100, f"{files} files: is {root} the tree?"
    print(f"{files} files, {found} looks into messages")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
