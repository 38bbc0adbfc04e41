"""Reads what `specd-bench run --json` wrote, and refuses everything else in one line."""
import dataclasses
import json
import math
import unicodedata

BYTES_MAX = 64 << 20
ROWS_MAX = 4096
# Quotients of what is read stay finite, and so do the axes of the plots.
FIGURE_MIN, FIGURE_MAX = 1e-12, 1e18
FORMAT = "specd-bench run"
FORMAT_VERSION = 1
REPLAY = "specd.drafter.replay"


class BadRun(Exception):
    """FILE: FIELD: expected ..., found ..."""


@dataclasses.dataclass
class Row:
    """One route at one sampling and one concurrency. What is 0 was not measured."""
    route: str
    is_control: bool
    temperature: float
    concurrency: int
    input_tokens: float  # of a prompt, median
    requests: int
    requests_with_loops: int
    tokens: int
    tokens_per_s: float
    ttft_ms: dict
    tpot_ms: dict
    tau: float
    acceptance_rate: float
    drafting: float
    speedup: float
    speedup_low: float
    speedup_high: float
    eta: float
    identical: bool
    promises_text: bool
    first_difference: str


@dataclasses.dataclass
class Run:
    file: str
    command: str
    version: str
    program_sha256: str
    device: str
    processor: str
    model: str
    weight_bytes: int
    threads: int
    isa: str
    prompts: int
    repeat: int
    cuts: str           # "top-p 1, top-k 0"; empty: an older program wrote the run, and did not say
    fresh_drafters: bool
    complete: bool
    verify_cost: dict   # V(n) by n
    draft_tokens: dict  # K by route
    drafters: dict      # (plugin, its configuration, most nodes of a draft) by route
    rows: list

    def setting(self):
        """Figures of runs that differ in these are not comparable."""
        return (self.model, self.weight_bytes, self.device, self.processor, self.isa, self.threads,
                self.version, self.program_sha256, self.cuts)


def visible(text):
    """Characters that steer, turn or break a line, which neither HTML nor a terminal should get, as U+FFFD."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or c in "\ufffe\uffff" else c
                   for c in text)


def found_text(value):
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 64:
        return "a number beyond 64 bits"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Object:
    """An object of the file and the path to it."""

    def __init__(self, file, path, value):
        self.file, self.path, self.value = file, path, value
        if not isinstance(value, dict):
            self.fail(None, "an object", found_text(value))

    def fail(self, key, expected, found):
        field = self.path if key is None else f"{self.path}.{key}" if self.path else key
        where = f"{visible(self.file)}: {visible(field)[:200]}" if field else visible(self.file)
        raise BadRun(f"{where}: expected {expected}, found {found}")

    def get(self, key, expected, good):
        if key not in self.value:
            self.fail(key, expected, "nothing")
        value = self.value[key]
        if not good(value):
            self.fail(key, expected, found_text(value))
        return value

    def text(self, key):
        return visible(self.get(key, "a text", lambda v: isinstance(v, str)))

    def flag(self, key):
        return self.get(key, "true or false", lambda v: isinstance(v, bool))

    def number(self, key, most=FIGURE_MAX):
        return self.get(key, f"0 or a number from {FIGURE_MIN:g} to {most:g}",
                        lambda v: is_number(v) and (v == 0 or FIGURE_MIN <= v <= most))

    def whole(self, key, least=0, most=(1 << 63) - 1):
        return self.get(key, f"a whole number from {least} to {most}",
                        lambda v: is_whole(v) and least <= v <= most)

    def object(self, key):
        return Object(self.file, f"{self.path}.{key}" if self.path else key,
                      self.get(key, "an object", lambda v: isinstance(v, dict)))


def is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value):
    return is_whole(value) or isinstance(value, float) and math.isfinite(value)


def read_row(row):
    for key in ("ttft_ms", "tpot_ms"):
        for place in ("p50", "p90", "p99"):
            row.object(key).number(place)
    low, speedup = row.number("speedup_low"), row.number("speedup")
    if not low <= speedup <= row.number("speedup_high"):
        row.fail("speedup", "a number from speedup_low to speedup_high", found_text(speedup))
    return Row(route=row.text("route"), is_control=row.flag("is_control"),
               temperature=row.number("temperature", 100), concurrency=row.whole("concurrency", 1, 1 << 20),
               input_tokens=row.number("input_tokens"), requests=row.whole("requests"),
               requests_with_loops=row.whole("requests_with_loops"), tokens=row.whole("tokens"),
               tokens_per_s=row.number("tokens_per_s"), ttft_ms=row.value["ttft_ms"],
               tpot_ms=row.value["tpot_ms"], tau=row.number("tau"),
               acceptance_rate=row.number("acceptance_rate", 1), drafting=row.number("drafting"),
               speedup=speedup, speedup_low=low, speedup_high=row.value["speedup_high"],
               eta=row.number("eta"), identical=row.flag("identical"),
               promises_text=row.flag("promises_text"), first_difference=row.text("first_difference"))


def read_verify_cost(cost):
    """V(n) by n; V(1) is 1."""
    values = {1: 1.0}
    for key in cost.value:
        if not (key.isascii() and key.isdigit() and len(key) <= 6 and int(key) >= 2):
            cost.fail(None, "numbers of rows, from 2, as keys", found_text(key))
        value = cost.number(key)
        if value == 0:
            cost.fail(key, "a number above 0", "0")
        values[int(key)] = value
    return values if len(values) > 1 else {}


def read_drafters(drafters):
    result = {}
    for route in drafters.value:
        use = drafters.object(route)
        result[visible(route)] = (use.text("plugin"), use.object("config").value, use.whole("draft_nodes_max"))
    return result


def parse(file, data):
    def refuse_constant(text):
        raise BadRun(f"{visible(file)}: expected JSON, found {text}, which is no number of JSON")

    def unique(pairs):
        result = {}
        for key, value in pairs:
            if key in result:
                raise BadRun(f"{visible(file)}: {visible(key)[:60]}: expected one value, found two")
            result[key] = value
        return result

    try:
        return json.loads(data.decode("utf-8"), parse_constant=refuse_constant, object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        found = f"the byte 0x{data[error.start]:02x} at offset {error.start}"
        raise BadRun(f"{visible(file)}: expected UTF-8, found {found}") from None
    except json.JSONDecodeError as error:
        raise BadRun(f"{visible(file)}:{error.lineno}:{error.colno}: expected JSON, found "
                     f"{'an empty file' if not data.strip() else 'something else: ' + error.msg}") from None
    except RecursionError:
        raise BadRun(f"{visible(file)}: expected JSON of a run, found too many levels") from None
    except ValueError:  # a whole number of thousands of digits
        raise BadRun(f"{visible(file)}: expected numbers of 64 bits, found a longer one") from None


def read_run(file):
    """BadRun when the file is not a run that can be shown."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(BYTES_MAX + 1)
    except OSError as error:
        raise BadRun(f"{visible(file)}: expected a file of specd-bench run --json, found: {error.strerror}") from None
    if len(data) > BYTES_MAX:
        raise BadRun(f"{visible(file)}: expected at most {BYTES_MAX} bytes, found more")
    top = Object(file, "", parse(file, data))
    top.get("format", f'"{FORMAT}"', lambda v: v == FORMAT)
    top.get("format_version", str(FORMAT_VERSION), lambda v: is_whole(v) and v == FORMAT_VERSION)
    listed = top.get("rows", "a list with a row for each route", lambda v: isinstance(v, list) and v)
    if len(listed) > ROWS_MAX:
        top.fail("rows", f"at most {ROWS_MAX} rows", str(len(listed)))
    rows, seen = [], {}
    for number, value in enumerate(listed):
        row = read_row(Object(file, f"rows[{number}]", value))
        key = (row.route, row.is_control, row.temperature, row.concurrency)
        if key in seen:
            Object(file, "", {}).fail(f"rows[{number}]", "each route once at a temperature and concurrency",
                                      f"that of rows[{seen[key]}] again")
        seen[key] = number
        rows.append(row)
    known = top.object("draft_tokens")
    cuts = f"top-p {top.number('top_p', 1):g}, top-k {top.whole('top_k')}" if "top_p" in top.value else ""
    return Run(file=visible(file), command=top.text("command"), version=top.text("version"),
               program_sha256=top.text("program_sha256"), device=top.text("device"),
               processor=top.text("processor"), model=top.text("model"),
               weight_bytes=top.whole("weight_bytes"), threads=top.whole("threads"), isa=top.text("isa"),
               prompts=top.whole("prompts"), repeat=top.whole("repeat"), cuts=cuts,
               fresh_drafters=top.flag("fresh_drafters"), complete=top.flag("complete"),
               verify_cost=read_verify_cost(top.object("verify_cost")),
               draft_tokens={visible(route): known.whole(route, 1, 1 << 20) for route in known.value},
               drafters=read_drafters(top.object("drafters")), rows=rows)


def read_runs(files):
    runs, seen = [], []
    for file in files:
        run = read_run(file)
        content = dataclasses.replace(run, file="")
        if content in seen:
            raise BadRun(f"{run.file}: expected each run once, found that of {runs[seen.index(content)].file} again")
        runs.append(run)
        seen.append(content)
    return runs
