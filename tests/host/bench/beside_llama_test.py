#!/usr/bin/env python3
"""beside_llama.py measures both programs in turn on the same weights and prompts, and judges by medians.

Usage: beside_llama_test.py SCRIPT ZOO. The programs are stand-ins here: they write down how they were called, and say
the figures that a test gives them, in the words of specd-bench and llama.cpp. The models are real.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy  # noqa: F401
except ImportError:
    sys.exit("python3-numpy is missing")

ZOO = os.path.abspath(sys.argv.pop(2))
SCRIPT = os.path.abspath(sys.argv.pop(1))
RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report", "k4.json")
TEXTS = ["a\r\n\\n b", "na\u00efve\n", "def f():\n"]

# Reads figures.json, {PROGRAM: {FORMAT: {FIGURE: [one of each round]}}}, and appends its call to calls.jsonl.
COMMON = f"""#!{sys.executable}
import json, os, sys
HERE = {{here!r}}
def after(name):
    return sys.argv[sys.argv.index(name) + 1]
def figure(program, form, what, more=None):
    with open(HERE + "/figures.json") as file:
        figures = json.load(file)
    calls = []
    if os.path.exists(HERE + "/calls.jsonl"):
        with open(HERE + "/calls.jsonl") as file:
            calls = [json.loads(line) for line in file]
    call = dict(program=program, format=form, what=what, arguments=sys.argv[1:], **(more or {{{{}}}}))
    before = sum(all(each[key] == call[key] for key in ("program", "format", "what"))
                 and each.get("setting") == call.get("setting") and each.get("prompt") == call.get("prompt")
                 for each in calls)
    with open(HERE + "/calls.jsonl", "a") as file:
        file.write(json.dumps(call) + "\\n")
    found = figures[program][form][what]
    if isinstance(found, str):  # instead of a figure: what it prints
        print(found)
        sys.exit(int(figures.get("status", 0)))
    return found[before]
"""
SPECD = COMMON + """
with open(after("--config")) as file:
    config = json.load(file)
form = os.path.basename(config["model"]["path"])
form = form if form in ("int8", "int4") else "bf16"
with open({run!r}) as file:
    run = json.load(file)
row = run["rows"][0]
row["route"] = after("--routes")
if row["route"] == "off":
    decode, prompt = figure("specd", form, "plain", {{"config": config}})
    row["ttft_ms"] = {{"p50": 256000 / prompt, "p90": 256000 / prompt, "p99": 256000 / prompt}}
else:
    with open(after("--prompts"), newline="") as file:
        prompts = [json.loads(line)["prompt"] for line in file]
    decode = figure("specd", form, "drafting", {{"config": config, "prompts": prompts}})
row["tpot_ms"] = {{"p50": 1000 / decode, "p90": 1000 / decode, "p99": 1000 / decode}}
run["rows"] = [row]
with open(after("--json"), "w") as file:
    json.dump(run, file)
"""
BENCH = COMMON + """
form = os.path.basename(after("-m")).split(".")[0]
what = "prompt" if after("-n") == "0" else "decode"
rates = figure("llama", form, what)
print(json.dumps([{{"build_commit": "abc", "build_number": 7, "cpu_info": "x", "model_type": "y", "model_size": 9,
                   "flash_attn": flag, "samples_ts": [rate * 0.5, rate, rate * 9]}}
                  for flag, rate in enumerate(rates)]))
"""
SPECULATIVE = COMMON + """
form, flag = os.path.basename(after("-m")).split(".")[0], after("-fa")
if not os.path.exists(HERE + "/lost"):  # the first time its last lines are lost
    open(HERE + "/lost", "w").close()
    sys.exit()
with open(after("-bf"), "rb") as file:
    text = file.read().decode("utf-8")
rates = figure("llama", form, "drafting", {{"setting": flag, "prompt": text}})
rate = rates[flag == "on"]
print(f"\\nsome text\\n\\ndecoded {{30:4}} tokens in {{30 / rate:8.6f}} seconds, speed: {{rate:8.3f}} t/s")
"""


def figures(quotient):
    """3 rounds in which specd is `quotient` times as fast; the median is not the mean, and neither setting of
    llama.cpp is always the better one."""
    def one(factor):
        return {"specd": [100 * quotient * factor, 400 * quotient * factor, 50 * quotient],
                "llama": [[100, 60], [300, 400], [50, 50]]}
    plain, drafting = one(1), one(1)
    specd, llama = {}, {}
    for form in ("bf16", "int8", "int4"):
        specd[form] = {"plain": [[rate, 10 * rate] for rate in plain["specd"]],
                       "drafting": [2 * rate for rate in drafting["specd"]]}
        llama[form] = {"decode": plain["llama"], "drafting": drafting["llama"],
                       "prompt": [[10 * each for each in pair] for pair in plain["llama"]]}
    return {"specd": specd, "llama": llama}


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="specd_beside_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = os.path.join(self.folder, "tiny")
        shutil.copytree(os.path.join(ZOO, "pico-draft"), self.model)
        for name in ("specd/bin", "specd/plugins", "llama/bin"):
            os.makedirs(os.path.join(self.folder, name))
        self.specd = self.program("specd/bin/specd-bench", SPECD)
        self.program("llama/bin/llama-bench", BENCH)
        self.program("llama/bin/llama-speculative-simple", SPECULATIVE)
        self.write("prompts.jsonl", json.dumps({"prompt": TEXTS[0]}) + "\n" + json.dumps({"text": TEXTS[1]}) + "\n")
        self.write("one.txt", TEXTS[2])

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8", newline="") as file:
            file.write(text)

    def program(self, name, text):
        path = os.path.join(self.folder, name)
        self.write(name, text.format(here=self.folder, run=RUN))
        os.chmod(path, 0o755)
        return path

    def run_script(self, *arguments, say=None):
        self.write("figures.json", json.dumps(say or {}))
        done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False,
                              cwd=self.folder)
        return done.returncode, done.stdout, done.stderr

    def compare(self, *arguments, say=None):
        with open(os.path.join(self.folder, "calls.jsonl"), "w", encoding="utf-8"):
            pass
        return self.run_script("compare", "--llama", "llama", "--specd", self.specd, "--model", self.model, "--rounds",
                               "3", "--json", "result.json", *arguments, say=say or figures(1.5))

    def calls(self):
        with open(os.path.join(self.folder, "calls.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def result(self):
        with open(os.path.join(self.folder, "result.json"), encoding="utf-8") as file:
            return json.load(file)

    def work(self):
        return [os.path.join(self.folder, "build/beside_llama", name)
                for name in os.listdir(os.path.join(self.folder, "build/beside_llama"))]

    def refused(self, words, *arguments, say=None):
        code, _, err = self.compare(*arguments, say=say)
        self.assertEqual(code, 2, err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn(words, err)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "result.json")))

    def test_every_figure_of_every_round(self):
        code, out, err = self.compare("--draft", os.path.join(ZOO, "pico-draft"), "--prompts", "prompts.jsonl",
                                      "--prompts", "one.txt", "--threads", "3", "--draft-tokens", "5")
        self.assertEqual((code, err), (0, ""))
        found = self.result()
        self.assertEqual((found["format"], found["format_version"], found["threads"]), ("beside_llama", 1, 3))
        rows = {(row["format"], row["what"]): row for row in found["rows"]}
        self.assertEqual(len(rows), 9)
        goals = {("int8", "decode"): 1.15, ("int8", "prompt"): 1, ("int8", "drafting"): 2, ("int4", "decode"): 1,
                 ("int4", "prompt"): 1, ("int4", "drafting"): 2}
        for key, row in rows.items():
            factor = {"decode": 1, "prompt": 10, "drafting": 1}[key[1]]
            quotient = 3 if key[1] == "drafting" else 1.5
            self.assertAlmostEqual(row["quotient"], quotient, places=5)
            self.assertAlmostEqual(row["specd"], 100 * quotient * factor, places=3)
            self.assertAlmostEqual(row["llama"], 100 * factor, places=3)
            self.assertEqual((row["goal"], row["met"]), (goals.get(key), True if key in goals else None))
        self.assertEqual(len(found["rounds"]), 27)
        self.assertEqual(found["rounds"][0], {"round": 1, "format": "bf16", "what": "decode", "specd": 150,
                                              "llama": {"-fa 0": 100, "-fa 1": 60}})
        self.assertEqual(out.count("round "), 27)
        self.assertIn("round 2  int4  decode    specd 600.00  llama.cpp -fa 0 300.00, -fa 1 400.00  quotient 1.500\n",
                      out)
        self.assertIn("int8    decode            150.00              100.00     1.500  1.15 met", out)
        self.assertIn("bf16    prompt           1500.00             1000.00     1.500  none", out)
        self.assertIn("int8: bytes of weights ", out)
        self.assertIn(f"load average before: {found['load_average']:.2f}\n", out)
        self.assertEqual(found["programs"]["int4"]["llama"]["build_number"], 7)
        self.check_calls()

    def check_calls(self):
        calls = self.calls()
        turns = []  # which program was measured, in the order of time
        for call in calls:
            if not turns or turns[-1] != (call["program"], call["format"], call["what"] == "drafting"):
                turns.append((call["program"], call["format"], call["what"] == "drafting"))
        expected = [(program, form, drafting) for number in (1, 2, 3) for form in ("bf16", "int8", "int4")
                    for drafting in (False, True)
                    for program in (("specd", "llama") if number % 2 else ("llama", "specd"))]
        self.assertEqual(turns, expected)
        for call in calls:
            words = call["arguments"]
            after = {words[at]: words[at + 1] for at in range(len(words) - 1) if words[at].startswith("-")}
            if call["program"] == "specd":
                path = call["config"]["model"]["path"]
                with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
                    quantized = json.load(file).get("quantization_config")
                self.assertEqual(quantized and quantized["format"],
                                 {"bf16": None, "int8": "int-quantized", "int4": "pack-quantized"}[call["format"]])
                self.assertEqual((after["--threads"], after["--repeat"]), ("3", "1"))
                self.assertEqual(call["config"]["routes"]["draft_target"]["drafter"]["config"]["draft_tokens"], 5)
                self.assertEqual(call["config"]["draft_models"][0]["path"], os.path.join(ZOO, "pico-draft"))
                if call["what"] == "drafting":
                    self.assertEqual((call["prompts"], after["--max-tokens"]), (TEXTS, "64"))
                else:
                    self.assertEqual((after["--input-mean"], after["--output-mean"]), ("256", "65"))
                continue
            self.assertEqual(after["-t"], "3")
            if call["what"] == "drafting":
                self.assertIn(call["prompt"], TEXTS)
                self.assertIn("--no-escape", words)
                self.assertEqual((after["--spec-draft-n-max"], after["-n"], after["--temp"]), ("5", "64", "0"))
                self.assertEqual(os.path.basename(after["-md"]), "draft.gguf")
            else:
                self.assertEqual((after["-p"], after["-n"], after.get("-d"), after["-fa"]), {
                    "prompt": ("256", "0", None, "0,1"), "decode": ("0", "64", "256", "0,1")}[call["what"]])
        kinds = {}
        for name in ("bf16", "int8", "int4"):
            with open(os.path.join(self.work()[0], f"{name}.gguf"), "rb") as file:
                data = file.read(400)
            at = data.index(b"general.file_type") + len(b"general.file_type") + 4
            kinds[name] = int.from_bytes(data[at:at + 4], "little")
        self.assertEqual(kinds, {"bf16": 32, "int8": 7, "int4": 2})

    def test_a_goal_that_is_missed(self):
        for quotient, code, missed in ((1.16, 0, 0), (1.14, 1, 1), (1.0, 1, 1), (0.99, 1, 4)):
            found, out, err = self.compare("--formats", "int8,int4", say=figures(quotient))
            self.assertEqual((found, err, out.count("MISSED")), (code, "", missed), quotient)
            self.assertEqual(sum(row["met"] is False for row in self.result()["rows"]), missed)
        found, out, _ = self.compare("--formats", "bf16", say=figures(0.1))
        self.assertEqual((found, out.count("none")), (0, 2))

    def test_what_was_converted_is_taken_again_unless_the_model_changes(self):
        def stamps():
            return {path: os.stat(path).st_mtime_ns for work in self.work()
                    for path in (os.path.join(work, name) for name in ("int8", "int8.gguf"))}
        self.compare("--formats", "int8")
        before = stamps()
        self.compare("--formats", "int8")
        self.assertEqual(stamps(), before)
        os.utime(os.path.join(self.model, "model.safetensors"), ns=(1, 1))
        self.compare("--formats", "int8")
        self.assertEqual(len(self.work()), 2)
        self.assertEqual(before.items() & stamps().items(), before.items())
        self.compare("--formats", "int8", "--group", "64")
        self.assertEqual(len(self.work()), 3)

    def test_a_folder_that_is_given(self):
        given = os.path.join(self.folder, "int8")
        shutil.copytree(self.model, given)
        code, _, err = self.compare("--formats", "int8", "--folder", "int8=int8")
        self.assertEqual((code, err), (0, ""))
        paths = {call["config"]["model"]["path"] for call in self.calls() if call["program"] == "specd"}
        self.assertEqual(paths, {given})
        self.assertFalse(os.path.exists(os.path.join(self.work()[0], "int8")))

    def test_programs_that_fail(self):
        say = figures(1.5)
        good = '{"flash_attn": 1, "samples_ts": [1]}'
        for output in ("no JSON", "[]", "{}", "[1, 2]", f"[{good}]",
                       f'[{{"flash_attn": 0, "samples_ts": [0]}}, {good}]',
                       f'[{{"flash_attn": 0, "samples_ts": []}}, {good}]',
                       f'[{{"flash_attn": 0, "samples_ts": ["x"]}}, {good}]'):
            say["llama"]["bf16"]["prompt"] = output
            self.refused("llama-bench' -o json: found something else", "--formats", "bf16", say=say)
        say = figures(1.5)
        self.refused("exit status 3, 'no such model'", "--formats", "bf16", say={
            **say, "status": 3, "llama": {"bf16": {"prompt": "no such model"}}})
        self.refused("run.json: expected a file", "--formats", "bf16", say={
            **say, "specd": {"bf16": {"plain": "no file is written"}}})
        say = figures(1.5)
        say["llama"]["bf16"]["drafting"] = "encoded 1 tokens"
        self.refused("expected a line 'decoded N tokens in S seconds'", "--formats", "bf16", "--draft", self.model,
                     "--prompts", "one.txt", say=say)

    def test_what_is_refused(self):
        for words, *arguments in (
                ("--formats: found 'bf16,fp8', expected some of bf16,int8,int4", "--formats", "bf16,fp8"),
                ("--threads: found 0, expected 1 to 1024", "--threads", "0"),
                ("--rounds: found 0", "--rounds", "0"), ("--draft-tokens: found 65", "--draft-tokens", "65"),
                ("--folder: found 'int3=x', expected FORMAT=FOLDER", "--folder", "int3=x"),
                ("--folder: found 'int8=', expected FORMAT=FOLDER", "--folder", "int8="),
                ("found no config.json, expected a model's folder", "--draft", self.folder),
                ("no program llama-bench in it or in its bin", "--llama", self.folder),
                ("expected a multiple of 8", "--group", "12"),
                ("nothing.txt", "--draft", self.model, "--prompts", "nothing.txt")):
            self.refused(words, *arguments)
        os.unlink(os.path.join(self.folder, "llama/bin/llama-speculative-simple"))
        self.refused("no program llama-speculative-simple", "--draft", self.model)

    def test_prompts_that_are_refused(self):
        for name, data, words in (("a.txt", b"", "found nothing, expected a prompt"),
                                  ("a.txt", b"ab\xff", "found the byte 0xff at offset 2, expected UTF-8"),
                                  ("a.jsonl", b"", "found no prompt, expected at least one"),
                                  ("a.jsonl", b"{}\n", "a.jsonl':1: found b'{}', expected an object with a text"),
                                  ("a.jsonl", b'{"prompt": "x"}\n{"prompt": 1}', "a.jsonl':2: found"),
                                  ("a.jsonl", b'{"prompt": "\\ud800"}', "a.jsonl':1: found"),
                                  ("a.jsonl", b'{"turns": []}', "a.jsonl':1: found"),
                                  ("a.jsonl", b"[" * 100000, "a.jsonl':1: found")):
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(data)
            self.refused(words, "--draft", self.model, "--prompts", name, "--formats", "bf16")

    def test_prompts_without_their_instruction(self):
        lines = [{"turns": ["Complete.\n\ndef f():\n\n"]}, {"text": "Complete."}]
        self.write("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        code, _, err = self.compare("--draft", self.model, "--formats", "bf16", "--prompts", "a.jsonl",
                                    "--without-first-line")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual([call["prompts"] for call in self.calls() if "prompts" in call],
                         3 * [["def f():\n\n", "Complete."]])

    def test_convert(self):
        code, out, err = self.run_script("convert", self.model, "out.gguf", "--type", "q8_0")
        size = os.path.getsize(os.path.join(self.folder, "out.gguf"))
        self.assertEqual((code, out, err), (0, f"'out.gguf': {size} bytes\n", ""))
        code, out, err = self.run_script("convert", self.model, "out.gguf", "--type", "bf16")
        self.assertEqual((code, out, err.count("\n")), (2, "", 1))
        self.assertIn("'out.gguf': found something of this name", err)
        code, _, err = self.run_script("convert", self.model, "no/out.gguf", "--type", "bf16")
        self.assertEqual((code, err.count("\n")), (2, 1))
        self.assertIn("No such file or directory", err)


if __name__ == "__main__":
    unittest.main()
