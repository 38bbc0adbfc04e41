"""Messages are for people: no code looks into a message's text to decide something.

Usage: messages_test.py ROOT. Prints each place of core and host that searches, cuts or compares the
text of a Status (or a report's reason) as file:line, and exits 1 if there is one. Code that decides
looks at code() and field(). A negative control runs first: planted ones must be found.
"""
import pathlib
import re
import sys

ROOMS = ["core", "host"]
SUFFIXES = {".h", ".cc"}
# What gives the words of an error, and what reports call them.
ERROR = r"(?:[Ss]tatus|[Ee]rror|[Ff]ailure|refus\w*|[Ww]hy)\w*(?:\(\))?(?:\.|->)"
WORDS = (rf"(?:\b\w*{ERROR}(?:text|to_string)\(\)|\b(?:error_)?message\(\)|"
         r"\b(?:reason|last_problem)\b)")
LOOK = (r"(?:find(?:_first_of|_last_of|_first_not_of)?|rfind|starts_with|ends_with|contains|compare|"
        r"substr|at)\s*\(")
FUNCTION = (r"\b(?:starts_with|begins_with|ends_with|contains|regex_\w+|RE2::\w+|strstr|strcmp|strncmp|"
            r"std::search|std::equal)\s*\(")
DIRECT = [
    re.compile(rf"{WORDS}\s*\.\s*{LOOK}"),       # status.message().find(
    re.compile(rf"{WORDS}\s*(?:==|!=)"),         # status.message() == "..."
    re.compile(rf"(?:==|!=)\s*[\w.>()-]*{WORDS}"),
    re.compile(rf"{FUNCTION}[^;]*{WORDS}"),      # starts_with(status.message(), ...)
]
# A name for the words: looked into below, in the same function.
ALIAS = re.compile(rf"\b(?:std::string|std::string_view|auto)\s*&?\s+(\w+)\s*[=({{][^;]*?{WORDS}\s*[)}}]*\s*;")
FUNCTION_END = re.compile(r"^\}", re.MULTILINE)


def without_comments(text):
    """Same lines, no comments; strings stay, so that their `//` does not end a line."""
    token = re.compile(r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*(?:.|\n)*?\*/')
    return token.sub(lambda m: re.sub(r"[^\n]", "", m[0]) if m[0].startswith("/") else m[0], text)


def looks(text):
    """Offsets at which code looks into a message."""
    text = without_comments(text)
    found = [match.start() for rule in DIRECT for match in rule.finditer(text)]
    for alias in ALIAS.finditer(text):
        end = FUNCTION_END.search(text, alias.end())
        body = text[alias.end():end.start() if end else len(text)]
        name = re.escape(alias[1])
        for rule in (rf"\b{name}\s*\.\s*{LOOK}", rf"\b{name}\s*(?:==|!=)", rf"(?:==|!=)\s*{name}\b",
                     rf"{FUNCTION}\s*{name}\b"):
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
]
FINE = [
    'if (status.field() == "request_id") return;',
    'std::string message = status.text();\n  if (message.size() > kMax) message.resize(kMax);',
    'return usage(options.status().message());',
    '// status.message().find("x") would be wrong\n',
    'log("cannot: " + status.message() + (value == 3 ? "a" : "b"));',
    'if (status.ok() != other.ok()) return status.message();',
    'const std::string text = file.text();\n  if (text.find("\\n") == 0) return;',
]


def main():
    for planted in PLANTED:
        assert looks("void f() {\n  " + planted + "\n}\n"), planted
    for fine in FINE:
        assert not looks("void f() {\n  " + fine + "\n}\n"), fine
    root = pathlib.Path(sys.argv[1])
    found, files = 0, 0
    for room in ROOMS:
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            files += 1
            for line, text in looks(file.read_text(encoding="utf-8")):
                print(f"{file.relative_to(root).as_posix()}:{line}: looks into a message: {text}")
                found += 1
    assert files > 100, f"{files} files: is {root} the tree?"
    print(f"{files} files, {found} looks into messages")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
