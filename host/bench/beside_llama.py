#!/usr/bin/python3
"""specd beside llama.cpp, on the same model and the same cores; needs numpy. In 8 and 4 bits each side rounds the
weights itself, and their inputs as it always does, so texts may differ.

  beside_llama.py convert FOLDER OUT --type bf16|q8_0|q4_0     a GGUF file of a model's folder (gguf.py)
  beside_llama.py compare --llama BUILD --model FOLDER         measures, and exits with 1 if a goal is missed
    --specd PROGRAM     default build/cpu/bin/specd-bench; its plugins are in ../plugins
    --draft FOLDER      also with a smaller model that drafts
    --formats LIST      default bf16,int8,int4
    --threads N         default 2
    --rounds N          default 5
    --prompts PATH      files with a prompt each, folders or *.jsonl, for drafting; default configs/prompts
    --without-first-line     drop an instruction line in front of each prompt
    --draft-tokens N    K, default 4
    --work FOLDER       keeps what is converted; default build/beside_llama
    --folder FORMAT=FOLDER   take this folder for specd instead of quantizing MODEL
    --group N           inputs that share a scale in 4 bits, default 32 as in Q4_0
    --head              the output head in 8 or 4 bits as well, where it is not the embedding
    --json FILE         every round and the result

In every round, for every format, specd and llama.cpp take turns, each time in the opposite order:
  decode     tokens/s of one sequence, 64 tokens behind a prompt of 256
  prompt     tokens/s of a prompt of 256 tokens
  drafting   tokens/s behind the prompt, median of the prompts, greedy, with the same draft model and K
specd's figures are those that a client sees, drawing included; llama.cpp's are of llama-bench and
llama-speculative-simple, whichever of -fa 0 and -fa 1 is better in that round. The result is the median of the
rounds' quotients, specd / llama.cpp.
"""
import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from gguf import Refused, convert, quote, refuse  # noqa: E402
from run_file import BadRun, is_number, read_run  # noqa: E402

PROMPT_TOKENS, DECODE_TOKENS, SAMPLES = 256, 64, 3  # SAMPLES: of each figure of a round
ATTEMPTS = 8  # llama-speculative-simple, when the machine is busy, may end before its last lines are out
CONTEXT = 4096  # of llama-speculative-simple: its default is all that the model can do
SETTINGS = {"-fa 0": "off", "-fa 1": "on"}
QUANTIZE = os.path.join(HERE, "../../sdk/zoo/recipe/quantize.py")
FORMAT, FORMAT_VERSION = "beside_llama", 1


@dataclasses.dataclass
class Format:
    gguf: str
    quantize: list  # arguments; none: the model as it is
    goals: dict     # least quotient of specd / llama.cpp


FORMATS = {"bf16": Format("bf16", [], {}),
           "int8": Format("q8_0", ["--format", "w8a8"], {"decode": 1.15, "prompt": 1.0, "drafting": 2.0}),
           "int4": Format("q4_0", ["--format", "w4a16"], {"decode": 1.0, "prompt": 1.0, "drafting": 2.0})}


# --- Programs


def call(command):
    """-> what it prints to standard output and to standard error"""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          check=False)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip()[-300:]
        refuse(quote(" ".join(command), 600), f"exit status {done.returncode}, {quote(last, 400)}", "status 0")
    return done.stdout, done.stderr


def program(folder, name):
    for path in (os.path.join(folder, "bin", name), os.path.join(folder, name)):
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    refuse(f"--llama {quote(folder, 400)}", f"no program {name} in it or in its bin",
           f"a build of llama.cpp: cmake --build {quote(folder, 400)} --target {name}")


class Specd:
    """Measures folders by specd-bench."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        self.plugins = os.path.abspath(os.path.join(os.path.dirname(options.specd), "../plugins"))

    def config(self, folder):
        config = {"listen": f"unix:{self.work}/unused.sock", "model": {"name": "target", "path": folder},
                  "plugins": {"directories": [self.plugins], "cache_directory": f"{self.work}/plugin-cache"},
                  "default_route": "off", "routes": {}}
        if self.options.draft:
            config["draft_models"] = [{"name": "draft", "path": self.options.draft}]
            drafter = {"plugin": "specd.drafter.draft_target",
                       "config": {"model": "draft", "draft_tokens": self.options.draft_tokens}}
            config["routes"]["draft_target"] = {"drafter": drafter, "verifier": {"plugin": "specd.verifier.match"},
                                                "draft_nodes_max": self.options.draft_tokens}
        path = os.path.join(self.work, "specd.yaml")  # every JSON is YAML
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        return path

    def run(self, folder, route, *arguments):
        result = os.path.join(self.work, "run.json")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(result)  # that of the run before
        call([self.options.specd, "run", "--config", self.config(folder), "--threads", str(self.options.threads),
              "--routes", route, "--repeat", "1", "--no-control", "--json", result, *arguments])
        run = read_run(result)
        rows = [row for row in run.rows if row.route == route]
        if len(rows) != 1 or rows[0].tpot_ms["p50"] <= 0 or rows[0].ttft_ms["p50"] <= 0:
            refuse(quote(result, 400), f"{len(rows)} rows of {route}, or one without times", "one with TTFT and TPOT")
        return run, rows[0]

    def plain(self, folder):
        run, row = self.run(folder, "off", "--synthetic", str(SAMPLES), "--input-mean", str(PROMPT_TOKENS),
                            "--output-mean", str(DECODE_TOKENS + 1), "--ignore-eos")
        return {"decode": 1000 / row.tpot_ms["p50"], "prompt": 1000 * PROMPT_TOKENS / row.ttft_ms["p50"]}, run

    def drafting(self, folder, prompts):
        _, row = self.run(folder, "draft_target", "--prompts", prompts, "--max-tokens", str(DECODE_TOKENS))
        return 1000 / row.tpot_ms["p50"]


class Llama:
    """Measures files by llama.cpp's programs. Figures are by setting: {"-fa 0": tokens/s, "-fa 1": ...}."""

    def __init__(self, options):
        self.options = options
        self.bench = program(options.llama, "llama-bench")
        self.speculative = program(options.llama, "llama-speculative-simple") if options.draft else None

    def run_bench(self, file, *arguments):
        out, _ = call([self.bench, "-m", file, "-t", str(self.options.threads), "-fa", "0,1", "-r", str(SAMPLES),
                       "-o", "json", *arguments])
        try:
            tests = json.loads(out)
            rates = {f"-fa {int(test['flash_attn'])}": statistics.median(test["samples_ts"]) for test in tests}
            if rates.keys() != SETTINGS.keys() or not all(is_number(rate) and rate > 0 for rate in rates.values()):
                raise ValueError(f"rates {rates}")
        except (ValueError, KeyError, TypeError) as error:
            refuse(f"{quote(self.bench, 400)} -o json", f"something else ({quote(str(error))})",
                   "two tests with flash_attn and samples_ts")
        return rates, tests[0]

    def plain(self, file):
        prompt, about = self.run_bench(file, "-p", str(PROMPT_TOKENS), "-n", "0")
        decode, _ = self.run_bench(file, "-p", "0", "-n", str(DECODE_TOKENS), "-d", str(PROMPT_TOKENS))
        return {"decode": decode, "prompt": prompt}, about

    def drafting(self, file, draft, prompts):
        return {setting: statistics.median(self.draft_one(file, draft, prompt, flag) for prompt in prompts)
                for setting, flag in SETTINGS.items()}

    def draft_one(self, file, draft, prompt, flag):
        threads = str(self.options.threads)
        for _ in range(ATTEMPTS):
            words = call([self.speculative, "-m", file, "-md", draft, "--spec-type", "draft-simple",
                          "--spec-draft-n-max", str(self.options.draft_tokens), "-t", threads, "-td", threads,
                          "-n", str(DECODE_TOKENS), "-c", str(CONTEXT), "--temp", "0", "-fa", flag, "--no-escape",
                          "-bf", prompt])
            found = re.search(r"decoded\s+(\d+) tokens in\s+([0-9.]+) seconds", "".join(words))
            if found and float(found[2]) > 0:
                return int(found[1]) / float(found[2])
        refuse(quote(self.speculative, 400), quote("".join(words)[-200:], 300),
               "a line 'decoded N tokens in S seconds'")


# --- What both measure


def contents_of(*folders):
    """The files of model folders as far as a change shows without reading them."""
    found = []
    for folder in folders:
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            about = entry.stat()
            found.append([folder, entry.name, about.st_size, about.st_mtime_ns])
    return found


class Models:
    """For every format the folder of specd and the file of llama.cpp, made unless they are there."""

    def __init__(self, options):
        self.options = options
        for folder in [options.model, *filter(None, [options.draft])]:
            if not os.path.isfile(os.path.join(folder, "config.json")):
                refuse(quote(folder, 400), "no config.json", "a model's folder")
        # What was made of other files, or in another way, is never taken: its folder has another name.
        made_of = [contents_of(options.model, *filter(None, [options.draft])), options.group, options.head]
        key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]
        self.work = os.path.abspath(os.path.join(options.work, f"{os.path.basename(options.model)}-{key}"))
        os.makedirs(self.work, exist_ok=True)

    def folder(self, name):
        if name in self.options.folder:
            return self.options.folder[name]
        arguments = list(FORMATS[name].quantize)
        if not arguments:
            return self.options.model
        out = os.path.join(self.work, name)
        if not os.path.isdir(out):
            arguments += ["--group", str(self.options.group)] if name == "int4" else []
            arguments += ["--ignore"] if self.options.head else []
            call([sys.executable, QUANTIZE, self.options.model, out, *arguments])
        return out

    def file(self, name):
        return self.gguf(self.options.model, FORMATS[name].gguf, f"{name}.gguf")

    def draft_file(self):
        return self.gguf(self.options.draft, "bf16", "draft.gguf")

    def gguf(self, model, kind, name):
        out = os.path.join(self.work, name)
        if not os.path.isfile(out):
            convert(model, out, kind, self.options.head)
        return out


def text_of(entry):
    """Of a line of a *.jsonl."""
    return entry["turns"][0] if "turns" in entry else next(entry[key] for key in ("prompt", "text") if key in entry)


def read_prompts(paths, without_first_line):
    """The texts in UTF-8, read as specd-bench reads its --prompts."""
    files = []
    for path in paths:
        files += [os.path.join(path, name) for name in sorted(os.listdir(path))] if os.path.isdir(path) else [path]
    texts = []
    for path in files:
        with open(path, "rb") as file:
            data = file.read()
        if not path.endswith(".jsonl"):
            texts.append((quote(path, 400), data))
            continue
        for number, line in enumerate(data.splitlines(), 1):
            where = f"{quote(path, 400)}:{number}"
            try:
                texts.append((where, text_of(json.loads(line)).encode("utf-8")))
            except (ValueError, TypeError, AttributeError, LookupError, StopIteration, RecursionError):
                refuse(where, quote(line), "an object with a text as 'prompt', 'text' or first of 'turns'")
    if without_first_line:
        texts = [(where, data.partition(b"\n")[2].lstrip(b"\n") or data) for where, data in texts]
    for where, data in texts:
        try:
            if not data.decode("utf-8"):
                refuse(where, "nothing", "a prompt")
        except UnicodeDecodeError as error:
            refuse(where, f"the byte 0x{data[error.start]:02x} at offset {error.start}", "UTF-8")
    if not texts:
        refuse("--prompts", "no prompt", "at least one")
    return [data for _, data in texts]


def write_prompts(texts, work):
    """-> the file of all prompts for specd-bench, and a file of each for llama.cpp"""
    together, apart = os.path.join(work, "prompts.jsonl"), []
    with open(together, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": text.decode("utf-8")}) + "\n" for text in texts)
    for number, text in enumerate(texts):
        apart.append(os.path.join(work, f"prompt-{number}.txt"))
        with open(apart[-1], "wb") as file:
            file.write(text)
    return together, apart


# --- Rounds


@dataclasses.dataclass
class Pair:
    """A figure of a round, in tokens/s."""
    round: int
    format: str
    what: str
    specd: float
    llama: dict  # by setting

    def quotient(self):
        return self.specd / max(self.llama.values())

    def line(self):
        theirs = ", ".join(f"{setting} {rate:.2f}" for setting, rate in self.llama.items())
        return (f"round {self.round}  {self.format}  {self.what:<8}  specd {self.specd:.2f}  llama.cpp {theirs}  "
                f"quotient {self.quotient():.3f}")


def measure(options, models, specd, llama, show):
    """-> all pairs, and what the programs say of themselves"""
    folders = {name: models.folder(name) for name in options.formats}
    files = {name: models.file(name) for name in options.formats}
    if options.draft:
        draft = models.draft_file()
        together, apart = write_prompts(read_prompts(options.prompts, options.without_first_line), models.work)
    pairs, about = [], {}

    def in_turn(number, ours, theirs):
        if number % 2:
            return ours(), theirs()
        found = theirs()
        return ours(), found

    for number in range(1, options.rounds + 1):
        for name in options.formats:
            (ours, run), (theirs, test) = in_turn(number, lambda: specd.plain(folders[name]),
                                                  lambda: llama.plain(files[name]))
            found = [Pair(number, name, what, ours[what], theirs[what]) for what in ours]
            about[name] = {"specd": {"weight_bytes": run.weight_bytes, "version": run.version, "isa": run.isa,
                                     "processor": run.processor, "program_sha256": run.program_sha256},
                           "llama": {key: test.get(key) for key in (
                               "build_commit", "build_number", "cpu_info", "model_type", "model_size")}}
            if options.draft:
                rates = in_turn(number, lambda: specd.drafting(folders[name], together),
                                lambda: llama.drafting(files[name], draft, apart))
                found.append(Pair(number, name, "drafting", *rates))
            for pair in found:
                show(pair.line())
            pairs += found
    return pairs, about


def summarize(pairs):
    """A row for each format and figure: medians, and whether the goal is met (None: there is none)."""
    rows = []
    for name, what in dict.fromkeys((pair.format, pair.what) for pair in pairs):
        some = [pair for pair in pairs if (pair.format, pair.what) == (name, what)]
        goal = FORMATS[name].goals.get(what)
        quotient = statistics.median(pair.quotient() for pair in some)
        rows.append({"format": name, "what": what, "specd": statistics.median(pair.specd for pair in some),
                     "llama": statistics.median(max(pair.llama.values()) for pair in some), "quotient": quotient,
                     "goal": goal, "met": None if goal is None else quotient >= goal})
    return rows


def table(rows):
    lines = ["format  figure    specd tokens/s  llama.cpp tokens/s  quotient  goal"]
    for row in rows:
        goal = "none" if row["goal"] is None else f"{row['goal']:g} {'met' if row['met'] else 'MISSED'}"
        lines.append(f"{row['format']:<6}  {row['what']:<8}  {row['specd']:>14.2f}  {row['llama']:>18.2f}  "
                     f"{row['quotient']:>8.3f}  {goal}")
    return "\n".join(lines)


def compare(options):
    """-> whether every goal is met"""
    load = os.getloadavg()[0]  # of other programs, which do not slow both sides alike
    llama, models = Llama(options), Models(options)
    pairs, about = measure(options, models, Specd(options, models.work), llama, lambda line: print(line, flush=True))
    rows = summarize(pairs)
    print(table(rows))
    for name, each in about.items():
        print(f"{name}: bytes of weights {each['specd']['weight_bytes']} and {each['llama']['model_size']}")
    print(f"load average before: {load:.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "format_version": FORMAT_VERSION, "command": " ".join(sys.argv),
                       "threads": options.threads, "load_average": load, "programs": about, "rows": rows,
                       "rounds": [dataclasses.asdict(pair) for pair in pairs]}, file, indent=2)
            file.write("\n")
    return all(row["met"] is not False for row in rows)


def check(options):
    if not options.formats or not all(name in FORMATS for name in options.formats):
        refuse("--formats", quote(",".join(options.formats)), f"some of {','.join(FORMATS)}")
    for name, most in (("threads", 1024), ("rounds", 1000), ("draft_tokens", 64)):
        if not 1 <= getattr(options, name) <= most:
            refuse(f"--{name.replace('_', '-')}", str(getattr(options, name)), f"1 to {most}")
    folders = {}
    for each in options.folder:
        name, _, folder = each.partition("=")
        if name not in FORMATS or not folder:
            refuse("--folder", quote(each), f"FORMAT=FOLDER, FORMAT one of {', '.join(FORMATS)}")
        folders[name] = os.path.abspath(folder)
    options.folder = folders
    for name in ("model", "draft", "specd"):
        if getattr(options, name):
            setattr(options, name, os.path.abspath(getattr(options, name)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="beside_llama.py convert|compare ...")
    commands = parser.add_subparsers(dest="command", required=True, help=argparse.SUPPRESS)
    one = commands.add_parser("convert")
    one.add_argument("folder")
    one.add_argument("out")
    one.add_argument("--type", choices=["bf16", "q8_0", "q4_0"], required=True)
    one.add_argument("--head", action="store_true")
    two = commands.add_parser("compare")
    two.add_argument("--llama", required=True)
    two.add_argument("--model", required=True)
    two.add_argument("--specd", default="build/cpu/bin/specd-bench")
    two.add_argument("--draft")
    two.add_argument("--formats", type=lambda text: text.split(","), default=list(FORMATS))
    two.add_argument("--threads", type=int, default=2)
    two.add_argument("--rounds", type=int, default=5)
    two.add_argument("--prompts", action="append")
    two.add_argument("--without-first-line", action="store_true")
    two.add_argument("--draft-tokens", type=int, default=4)
    two.add_argument("--work", default="build/beside_llama")
    two.add_argument("--folder", action="append", default=[])
    two.add_argument("--group", type=int, default=32)
    two.add_argument("--head", action="store_true")
    two.add_argument("--json")
    options = parser.parse_args()
    try:
        if options.command == "convert":
            size = convert(options.folder, options.out, options.type, options.head)
            print(f"{quote(options.out, 400)}: {size} bytes")
            return
        options.prompts = options.prompts or [os.path.join(HERE, "../../configs/prompts")]
        check(options)
        if not compare(options):
            sys.exit(1)
    except (Refused, BadRun) as refused:
        print(refused, file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"{quote(error.filename or '', 400)}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
