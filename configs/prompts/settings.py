"""Command-line options of the report tool."""

import argparse
import os
import sys

DEFAULT_FORMAT = "text"
DEFAULT_LIMIT = 100
FORMATS = ("text", "json", "csv")


def positive_int(value):
    try:
        number = int(value)
    except ValueError:
        raise argparse.ArgumentTypeError("not a number: %r" % value)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be positive: %r" % value)
    return number


def existing_file(value):
    if not os.path.isfile(value):
        raise argparse.ArgumentTypeError("not a file: %r" % value)
    return value


def build_parser():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=existing_file, help="file to read")
    parser.add_argument("-o", "--output", default=None, help="file to write")
    parser.add_argument("-f", "--format", choices=FORMATS, default=DEFAULT_FORMAT, help="output format")
    parser.add_argument("-l", "--limit", type=positive_int, default=DEFAULT_LIMIT, help="number of rows")
    parser.add_argument("-v", "--verbose", action="store_true", help="print more")
    parser.add_argument("-q", "--quiet", action="store_true", help="print less")
