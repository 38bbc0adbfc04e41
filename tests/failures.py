"""Prints each failed test of ctest's JUnit files (ctest --output-junit) with the end of its output.

    python3 tests/failures.py FILE...
"""

import sys
import xml.etree.ElementTree as tree

END = 40  # lines of a test's output


def failures(path):
    """Yields (test, why, output) of each test that failed."""
    for case in tree.parse(path).getroot().iter('testcase'):
        failure = case.find('failure')
        if failure is not None:
            yield case.get('name'), failure.get('message', ''), case.findtext('system-out', '')


def main():
    for path in sys.argv[1:]:
        try:
            for test, why, output in failures(path):
                print(f'\n-- failed: {test} ({path}): {why}')
                print('\n'.join(output.splitlines()[-END:]))
        except (OSError, tree.ParseError) as error:
            print(f'{path}: {error}')


if __name__ == '__main__':
    main()
