import re
from collections import Counter, namedtuple
from datetime import datetime

Entry = namedtuple("Entry", ["time", "level", "source", "message"])

LINE = re.compile(r"^(?P<time>\S+ \S+) \[(?P<level>[A-Z]+)\] (?P<source>[\w.]+): (?P<message>.*)$")
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def parse_line(line):
    match = LINE.match(line)
    if match is None:
        return None
    return Entry(
        time=datetime.strptime(match.group("time"), TIME_FORMAT),
        level=match.group("level"),
        source=match.group("source"),
        message=match.group("message"),
    )


def parse_file(path):
    entries = []
    with open(path, "r", encoding="utf-8") as stream:
        for line in stream:
            entry = parse_line(line.rstrip("\n"))
            if entry is not None:
                entries.append(entry)
    return entries


def count_levels(entries):
    counter = Counter()
    for entry in entries:
        counter[entry.level] += 1
    return counter


def count_sources(entries):
    counter = Counter()
    for entry in entries:
        counter[entry.source] += 1
    return counter


def filter_level(entries, level):
    return [entry for entry in entries if entry.level == level]


def filter_source(entries, source):
