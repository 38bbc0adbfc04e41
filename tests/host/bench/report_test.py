#!/usr/bin/env python3
"""The page of report.py holds the figures of its runs, and files that are no runs are refused in one line.

Usage: report_test.py SCRIPT. The folder report has runs of the small models, as specd-bench wrote them, with
fewer rows.
"""
import contextlib
import html.parser
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPT = os.path.abspath(sys.argv.pop(1))
RUNS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report")
spec = importlib.util.spec_from_file_location("report", SCRIPT)
report = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(report)
MISSING = "python3-matplotlib is missing: no page was made"
needs_matplotlib = unittest.skipIf(report.matplotlib is None, MISSING)

VOID = {"meta", "link"}


class Page(html.parser.HTMLParser):
    """Tables as lists of {column: (text, exact values)}, all text, all tags and attributes."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.words, self.tags, self.open = [], [], [], []
        self.heads = self.cell = None
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
            self.heads = []
        elif tag == "tr":
            self.row = []
        elif tag in ("th", "td"):
            self.cell = ["", []]
        elif tag == "data":
            if self.cell is not None:
                self.cell[1].append(json.loads(dict(attributes)["value"]))

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        opened = self.open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        if tag in ("th", "td"):
            self.row.append(tuple(self.cell))
            self.cell = None
        elif tag == "tr":
            if not self.heads:
                self.heads = [text for text, _ in self.row]
            else:
                assert len(self.row) == len(self.heads)
                self.tables[-1].append(dict(zip(self.heads, self.row)))

    def handle_data(self, data):
        self.words.append(data)
        if self.cell is not None:
            self.cell[0] += data

    def text(self):
        return "".join(self.words)


def run_of(name):
    with open(os.path.join(RUNS, name), encoding="utf-8") as file:
        return json.load(file)


def program(*arguments):
    """(exit code, standard output, standard error) of main()."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = report.main(list(arguments))
        except SystemExit as exit_:
            code = exit_.code
    out.flush()
    return code, out.buffer.getvalue().decode("utf-8"), err.getvalue()


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def page(self, *files):
        code, out, err = program(*files)
        self.assertEqual((code, err), (0, ""))
        return out

    def recorded(self, *names):
        return self.page(*(os.path.join(RUNS, name) for name in names))


@needs_matplotlib
class Figures(ReportTest):
    NAMES = ("k2.json", "k4.json", "replay.json", "in32.json", "in128.json")
    COLUMNS = {"at once": ("concurrency",), "input tokens": ("input_tokens",), "tokens/s": ("tokens_per_s",),
               "TPOT ms p50": ("tpot_ms", "p50"), "p90": ("tpot_ms", "p90"), "p99": ("tpot_ms", "p99"),
               "TTFT ms p50": ("ttft_ms", "p50"), "tau": ("tau",), "S": ("speedup",),
               "95 % from": ("speedup_low",), "to": ("speedup_high",), "eta": ("eta",)}

    @classmethod
    def setUpClass(cls):
        code, cls.html, err = program(*(os.path.join(RUNS, name) for name in cls.NAMES))
        assert (code, err) == (0, "")
        cls.parsed = Page(cls.html)

    def test_every_row_of_every_run_is_in_a_table_and_no_other_is(self):
        expected = set()
        for number, name in enumerate(self.NAMES, 1):
            for row in run_of(name)["rows"]:
                figures = []
                for path in self.COLUMNS.values():
                    value = row
                    for key in path:
                        value = value[key]
                    figures.append(value)
                expected.add((number, *figures))
        self.assertEqual(len(expected), sum(len(run_of(name)["rows"]) for name in self.NAMES))
        shown = set()
        for table in self.parsed.tables:
            for row in table:
                if "drafter" in row:
                    shown.add((int(row["run"][0]), *(row[column][1][0] for column in self.COLUMNS)))
        self.assertEqual(shown, expected)

    def test_what_is_read_is_the_exact_figure_to_three_digits(self):
        checked = 0
        for table in self.parsed.tables:
            for row in table:
                for text, values in row.values():
                    for value in values:
                        self.assertAlmostEqual(float(text), value, delta=0.0051 * value)
                        checked += 1
        self.assertGreater(checked, 500)

    def test_the_bound_is_that_of_the_costs_in_the_same_run(self):
        cost = {1: 1.0, **{int(n): value for n, value in run_of("replay.json")["verify_cost"].items()}}
        bounds = {}
        for table in self.parsed.tables:
            for row in table:
                if row.get("drafter", ("",))[0] == "replay, 100 % right":
                    bounds[int(row["K"][0]), row["at once"][1][0]] = row["bound of S"][1]
        self.assertEqual(bounds.pop((4, 2)), [])  # V(10) was not measured
        self.assertEqual(sorted(bounds), [(2, 1), (2, 2), (4, 1)])
        for (k, at_once), bound in bounds.items():
            self.assertAlmostEqual(bound[0], (k + 1) * cost[at_once] / cost[at_once * (k + 1)], places=12)

    def test_plots_have_markers_and_ends_of_intervals_where_the_figures_are(self):
        where = ": replay, 100 % right, prompts of 408.5 tokens, greedy, answers of 48 tokens"
        svg = "{http://www.w3.org/2000/svg}"
        for measure, keys in [("Throughput, tokens/s", ["tokens_per_s"]),
                              ("Speedup S, times off", ["speedup", "speedup_low", "speedup_high"])]:
            found = re.search(rf'<svg role="img" aria-label="{re.escape(measure + where)}".*?</svg>', self.html, re.S)
            tree = xml.etree.ElementTree.fromstring(found[0])
            ticks = [(float(next(group.iter(f"{svg}use")).get("y")), float(next(group.iter(f"{svg}text")).text))
                     for group in tree.iter(f"{svg}g") if re.search(r"-ytick_\d+$", group.get("id", ""))]
            (low, low_value), (high, high_value) = ticks[0], ticks[-1]
            for series, at_once in enumerate((1, 2)):
                drawn = [low_value + (float(use.get("y")) - low) / (high - low) * (high_value - low_value)
                         for use in tree.iter(f"{svg}use") if f"var(--s{series})" in use.get("style", "")]
                figures = [row[key] for row in run_of("replay.json")["rows"] for key in keys
                           if row["route"].startswith("replay") and row["concurrency"] == at_once]
                self.assertEqual(len(drawn), len(figures))
                for y, figure in zip(sorted(drawn), sorted(figures)):
                    self.assertAlmostEqual(y, figure, delta=0.002 * high_value)

    def test_each_question_has_its_section(self):
        text = self.parsed.text()
        for heading in ("By drafter and draft model", "By draft tokens and concurrency", "By input length",
                        "The cost of verifying", "draft_target (pico-draft), prompts of 408.5 tokens, greedy",
                        "1 at once, greedy, answers of 32 tokens"):
            self.assertIn(heading, text)

    def test_machine_and_command_of_each_run_are_told(self):
        text = self.parsed.text()
        for name in self.NAMES:
            self.assertIn(run_of(name)["command"], text)
        self.assertIn("AMD EPYC", text)

    def test_the_page_loads_nothing_and_runs_no_script(self):
        for tag, attributes in self.parsed.tags:
            self.assertNotIn(tag, ("script", "iframe", "object", "img"))
            for name, value in attributes.items():
                self.assertFalse(name.startswith("on"), name)
                if name in ("href", "src", "xlink:href"):
                    self.assertRegex(value, r"^(#|data:,$)")
        self.assertNotRegex(self.html, r"url\((?!#)|@import")

    def test_ids_are_unique_and_every_reference_has_its_target(self):
        ids = [attributes["id"] for _, attributes in self.parsed.tags if "id" in attributes]
        self.assertEqual(len(ids), len(set(ids)))
        for wanted in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)|labelledby="([^"]+)"', self.html):
            self.assertIn("".join(wanted), ids)

    def test_the_same_runs_give_the_same_page(self):
        self.assertEqual(self.recorded(*self.NAMES), self.html)


@needs_matplotlib
class Warned(ReportTest):
    def test_runs_of_different_machines_models_and_programs_are_told_and_drawn_apart(self):
        other = run_of("k4.json")
        other.update(processor="Another", model="other, LlamaForCausalLM", program_sha256="ab" * 32)
        page = Page(self.page(os.path.join(RUNS, "k2.json"), self.write("other.json", other)))
        text = page.text()
        self.assertIn("the runs differ in model: configs/zoo/pico-target, LlamaForCausalLM (run 1); "
                      "other, LlamaForCausalLM (run 2).", text)
        self.assertIn("the runs differ in processor: AMD EPYC (run 1); Another (run 2).", text)
        self.assertIn("the runs differ in program: ", text)
        self.assertNotIn("By draft tokens and concurrency", text)
        costs = [[head for head in table[0] if head.startswith("V(n)")] for table in page.tables]
        self.assertEqual([heads for heads in costs if heads], [["V(n), run 1"], ["V(n), run 2"]])
        for table in page.tables:
            self.assertEqual(len({row["run"][0] for row in table if "run" in row} or {1}), 1)

    def test_runs_that_draw_from_other_tokens_are_drawn_apart(self):
        files = []
        for k, top_p in ((2, 1.0), (4, 0.9)):
            run = run_of(f"k{k}.json")
            run.update(top_p=top_p, top_k=0)
            files.append(self.write(f"{k}.json", run))
        text = Page(self.page(*files)).text()
        self.assertIn("the runs differ in top-p and top-k: top-p 1, top-k 0 (run 1); top-p 0.9, top-k 0 (run 2).", text)
        self.assertNotIn("By draft tokens and concurrency", text)

    def test_runs_that_are_alike_are_not_said_to_differ(self):
        text = self.recorded("k2.json", "k4.json")
        self.assertNotIn("the runs differ", text)
        self.assertNotIn("is larger than V(", text)
        self.assertNotIn("has one prompt", text)

    def test_what_a_reader_must_know_before_believing_is_told(self):
        run = run_of("k2.json")
        run.update(complete=False, fresh_drafters=False, program_sha256="", drafters={})
        run["rows"] = [row for row in run["rows"] if not row["is_control"]]
        run["rows"][1].update(identical=False, first_difference="a.py: token 3")
        text = Page(self.page(self.write("r.json", run))).text()
        for expected in ("Run 1 ended early", "whose drafters keep what earlier requests taught them. Its processor "
                         "and program are not known",
                         "its noise is not known", "wrote another text than off, although it promises the same: a.py: token 3"):
            self.assertIn(expected, text)
        run = run_of("k2.json")
        control = next(row for row in run["rows"] if row["is_control"])
        control.update(speedup=1.2, speedup_low=1.1, speedup_high=1.3)
        run["verify_cost"].update({"2": 3.0, "3": 1.2})
        run.update(prompts=1, repeat=1)
        next(row for row in run["rows"] if row["route"] == "off").update(requests=6, requests_with_loops=2)
        text = Page(self.page(self.write("r.json", run))).text()
        self.assertIn("noise: off measures 1.200 [1.10, 1.30] of itself", text)
        self.assertIn("Run 1: V(2) is larger than V(3): ", text)
        self.assertIn("2 of 6 answers of off end in a loop", text)
        self.assertIn("Run 1 has one prompt: its intervals are over the rounds of that prompt and say nothing of others, "
                      "and with one round they have no width.", text)

    def test_a_drafter_that_broke_its_promise_is_not_the_best(self):
        run = run_of("k2.json")
        best = max((row for row in run["rows"] if row["concurrency"] == 1 and row["route"] != "off"),
                   key=lambda row: row["speedup"])
        for same, expected in ((True, True), (False, False)):
            best["identical"] = same
            lead = re.search("Largest speedup.*", Page(self.page(self.write("r.json", run))).text())
            self.assertEqual(f"by {best['route']}" in (lead[0] if lead else ""), expected)

    def test_names_with_html_and_formulas_stay_names(self):
        evil = "<script>alert(1)</script>&\"'</svg>$x_{$\u0007\u202e]]>"
        run = run_of("k2.json")
        for row in run["rows"]:
            if row["route"] == "draft_target":
                row["route"] = evil
        run["drafters"][evil] = {"plugin": evil, "draft_nodes_max": 8,
                                "config": {"model": "a/" + evil, "draft_tokens": 2}}
        run.update(model=evil, command=evil, processor=evil, device=evil, isa=evil, version=evil)
        path = self.write("<b>.json", run)
        out = self.page(path, os.path.join(RUNS, "k4.json"))
        page = Page(out)
        self.assertNotIn("<script", out)
        self.assertNotRegex(out, "[\u0007\u202e]")
        self.assertNotIn("b", [tag for tag, _ in page.tags])
        self.assertIn("<script>alert(1)</script>&\"'</svg>$x_{$", page.text())

    def test_a_name_that_looks_like_part_of_a_plot_stays_a_name(self):
        evil = '#020301 id="x" url(#y) xlink:href="#z" \u4e2d\u6587'
        run = run_of("k2.json")
        for row in run["rows"]:
            if row["route"] == "draft_target":
                row["route"] = evil
        page = self.page(self.write("r.json", run))
        drawn = [text.text for svg in re.findall(r'<svg role="img".*?</svg>', page, re.S)
                 for text in xml.etree.ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn(evil, drawn)

    def test_more_series_than_colors_are_told_apart(self):
        run = run_of("k2.json")
        rows = [row for row in run["rows"] if row["concurrency"] == 1]
        run["rows"] = [dict(row, concurrency=level) for level in range(1, 10) for row in rows]
        page = self.page(self.write("r.json", run))
        swatches = re.findall(r"<svg[^>]*>(.*?)</svg>", re.search('<ul class="legend">.*?</ul>', page)[0])
        self.assertEqual(len(swatches), 9)
        self.assertEqual(len(set(swatches)), 9)
        plot = re.search(r'<svg role="img".*?</svg>', page, re.S)[0]
        markers = re.findall(r'<use xlink:href="#([^"]+)"[^>]*style="fill: (var\(--s\d\))', plot)
        self.assertEqual(len(set(markers)), 9 + 6)  # the ends of intervals have one shape, in six colors

    def test_sizes_are_read_without_an_exponent(self):
        for count, expected in [(0, "0 bytes"), (999, "999 bytes"), (999.6e6, "1 GB"), (31457280, "31.5 MB"),
                                (4.8e12, "4.8 TB"), (2.5e15, "2500 TB")]:
            self.assertEqual(report.bytes_text(count), expected)

    def test_a_draft_is_no_longer_than_its_route_allows(self):
        run = run_of("k2.json")
        run["drafters"]["eagle3"] = {"plugin": "specd.drafter.eagle3", "draft_nodes_max": 5,
                                     "config": {"draft_tokens": 8}}
        table = Page(self.page(self.write("r.json", run))).tables[0]
        self.assertEqual({row["K"][0] for row in table if row["drafter"][0] == "eagle3"}, {"5"})

    def test_a_run_that_measured_nothing_makes_a_page(self):
        run = run_of("k2.json")
        run["verify_cost"] = {}
        for row in run["rows"]:
            for key, value in row.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "concurrency":
                    row[key] = 0
            row["tpot_ms"] = row["ttft_ms"] = {"p50": 0, "p90": 0, "p99": 0}
        self.assertIn("specd-bench: 1 run", self.page(self.write("r.json", run)))


class Refused(ReportTest):
    def refused(self, *files):
        code, out, err = program(*files)
        self.assertEqual((code, out), (2, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        return err.replace(self.folder + "/", "")[:-1]

    def test_files_that_are_no_json(self):
        for content, expected in [
                (b"", "r.json:1:1: expected JSON, found an empty file"),
                (b"{\n  no", "r.json:2:3: expected JSON, found something else: "
                             "Expecting property name enclosed in double quotes"),
                (b'{"rows": [NaN]}', "r.json: expected JSON, found NaN, which is no number of JSON"),
                (b'{"a": -Infinity}', "r.json: expected JSON, found -Infinity, which is no number of JSON"),
                (b'{"a\\n": 1, "a\\n": 2}', "r.json: a\ufffd: expected one value, found two"),
                (b'{"a": "\xff"}', "r.json: expected UTF-8, found the byte 0xff at offset 7"),
                (b"[" * 100000, "r.json: expected JSON of a run, found too many levels"),
                (b"9" * 5000, "r.json: expected numbers of 64 bits, found a longer one"),
                (b"[1]", "r.json: expected an object, found a list"),
                (b"{}", 'r.json: format: expected "specd-bench run", found nothing')]:
            with self.subTest(expected=expected):
                self.assertEqual(self.refused(self.write("r.json", content)), f"report.py: {expected}")

    def test_values_that_are_not_those_of_a_run(self):
        def row(**values):
            return lambda run: run["rows"][1].update(values)

        def top(**values):
            return lambda run: run.update(values)

        for change, expected in [
                (top(format="specd-bench prefill"), 'format: expected "specd-bench run", found "specd-bench prefill"'),
                (top(format_version=2), "format_version: expected 1, found 2"),
                (top(format_version=True), "format_version: expected 1, found true"),
                (lambda run: run.pop("command"), "command: expected a text, found nothing"),
                (top(threads=-1), "threads: expected a whole number from 0 to 9223372036854775807, found -1"),
                (top(threads=1.5), "threads: expected a whole number from 0 to 9223372036854775807, found 1.5"),
                (top(weight_bytes=10 ** 400),
                 "weight_bytes: expected a whole number from 0 to 9223372036854775807, found a number beyond 64 bits"),
                (top(complete="yes"), 'complete: expected true or false, found "yes"'),
                (top(rows=[]), "rows: expected a list with a row for each route, found a list"),
                (top(rows=[3]), "rows[0]: expected an object, found 3"),
                (top(verify_cost={"x": 1}), 'verify_cost: expected numbers of rows, from 2, as keys, found "x"'),
                (top(verify_cost={"2": 0}), "verify_cost.2: expected a number above 0, found 0"),
                (top(drafters={"a": {"config": {}}}), "drafters.a.plugin: expected a text, found nothing"),
                (top(draft_tokens={"a": 0}), "draft_tokens.a: expected a whole number from 1 to 1048576, found 0"),
                (lambda run: run["rows"][1].pop("tau"), "rows[1].tau: expected 0 or a number from 1e-12 to 1e+18, found nothing"),
                (row(tau=5e-324), "rows[1].tau: expected 0 or a number from 1e-12 to 1e+18, found 5e-324"),
                (top(verify_cost={"2": 5e-324}),
                 "verify_cost.2: expected 0 or a number from 1e-12 to 1e+18, found 5e-324"),
                (top(top_p=1.5, top_k=0), "top_p: expected 0 or a number from 1e-12 to 1, found 1.5"),
                (top(top_p=1), "top_k: expected a whole number from 0 to 9223372036854775807, found nothing"),
                (top(rows=[{}] * 4097), "rows: expected at most 4096 rows, found 4097"),
                (row(tau=None), "rows[1].tau: expected 0 or a number from 1e-12 to 1e+18, found null"),
                (row(tau=-1), "rows[1].tau: expected 0 or a number from 1e-12 to 1e+18, found -1"),
                (row(acceptance_rate=1.5), "rows[1].acceptance_rate: expected 0 or a number from 1e-12 to 1, found 1.5"),
                (row(concurrency=0), "rows[1].concurrency: expected a whole number from 1 to 1048576, found 0"),
                (row(route=["a"]), "rows[1].route: expected a text, found a list"),
                (row(tpot_ms={"p50": 1, "p90": "x" * 80, "p99": 1}),
                 'rows[1].tpot_ms.p90: expected 0 or a number from 1e-12 to 1e+18, found "' + "x" * 56 + "..."),
                (row(speedup=9), "rows[1].speedup: expected a number from speedup_low to speedup_high, found 9"),
                (lambda run: run["rows"].append(run["rows"][1]), "rows[8]: expected each route once at a temperature "
                                                                "and concurrency, found that of rows[1] again")]:
            with self.subTest(expected=expected):
                run = run_of("k2.json")
                change(run)
                self.assertEqual(self.refused(self.write("r.json", run)), f"report.py: r.json: {expected}")

    def test_a_number_too_large_for_a_float(self):
        text = json.dumps(run_of("k2.json")).replace('"tau": 1.0', '"tau": 1e999', 1)
        self.assertEqual(self.refused(self.write("r.json", text.encode())),
                         "report.py: r.json: rows[0].tau: expected 0 or a number from 1e-12 to 1e+18, found Infinity")

    @needs_matplotlib
    def test_the_smallest_cost_still_makes_a_page(self):
        runs = [run_of("k2.json"), run_of("k4.json")]
        for run in runs:
            run["verify_cost"] = {str(n): 1e-12 for n in range(2, 20)}
        code, _, err = program(*(self.write(f"{i}.json", run) for i, run in enumerate(runs)))
        self.assertEqual((code, err), (0, ""))

    def test_a_run_that_is_given_twice(self):
        first, second = self.write("a.json", run_of("k2.json")), self.write("b.json", run_of("k2.json"))
        self.assertIn("b.json: expected each run once, found that of a.json again", self.refused(first, second))

    def test_files_that_cannot_be_read(self):
        self.assertEqual(self.refused(os.path.join(self.folder, "no\n.json")),
                         "report.py: no\ufffd.json: expected a file of specd-bench run --json, found: "
                         "No such file or directory")

    def test_a_page_does_not_replace_a_run(self):
        path = self.write("r.json", run_of("k2.json"))
        before = os.stat(path)
        self.assertEqual(self.refused(path, "-o", path),
                         "report.py: -o: expected a file that is not one of the runs, found r.json")
        self.assertEqual(os.stat(path).st_mtime_ns, before.st_mtime_ns)


class AsAProgram(ReportTest):
    def run_program(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)

    def test_help_and_a_wrong_command_line(self):
        shown = self.run_program("--help")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertIn("RUN.json", shown.stdout)
        self.assertEqual(self.run_program().returncode, 2)

    @needs_matplotlib
    def test_the_page_goes_to_the_file_or_to_standard_output(self):
        run, page = os.path.join(RUNS, "k2.json"), os.path.join(self.folder, "page.html")
        shown, written = self.run_program(run), self.run_program(run, "-o", page)
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertEqual((written.returncode, written.stdout, written.stderr), (0, "", ""))
        with open(page, encoding="utf-8") as file:
            self.assertEqual(file.read(), shown.stdout)
        refused = self.run_program(run, "-o", os.path.join(self.folder, "no", "page.html"))
        self.assertEqual(refused.returncode, 1)
        self.assertIn("page.html: cannot write: No such file or directory", refused.stderr)


if __name__ == "__main__":
    passed = unittest.main(exit=False).result.wasSuccessful()
    if passed and report.matplotlib is None:
        print(MISSING)  # for ctest
    sys.exit(not passed)
