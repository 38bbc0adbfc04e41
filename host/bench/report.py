#!/usr/bin/python3
"""Makes one page of HTML, with plots and tables, of runs that `specd-bench run --json` wrote.

Files -> run_file.read_runs() -> points: a row of a run, with the draft length and the drafter -> groups of
points that differ in what a plot shows and in nothing else -> for each group plots, and a table of the
same points. The page loads nothing and runs no script.
"""
import argparse
import collections
import dataclasses
import html
import json
import math
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report_plots import MEASURES, cost_plot, dot_plot, line_plot, matplotlib, short, style  # noqa: E402
from run_file import REPLAY, BadRun, Row, Run, read_runs, visible  # noqa: E402

# By Okabe and Ito, who chose them for people who confuse red and green; two are darker here.
LIGHT = ["#0072b2", "#d55e00", "#00805d", "#a8578a", "#555555", "#8c6100"]
DARK = ["#5db5ee", "#ff8f52", "#35c79f", "#e6a0c8", "#b5b5b5", "#e0b040"]
# The markers of the plots, for legends.
MARKER_PATHS = ["M14 4a4 4 0 1 0 .01 0z", "M10 4h8v8h-8z", "M14 3l5 9h-10z", "M14 3l5 5-5 5-5-5z",
                "M14 13l5-9h-10z", "M12.5 3.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z"]

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f7f7f5;--ink:#1b1b1b;--muted:#5a5a5a;--grid:#dcdcd8;
--warn:#8a3b00;--warnback:#fff3e6;%(light)s}
@media(prefers-color-scheme:dark){:root{--paper:#151617;--card:#1e2022;--ink:#ececec;--muted:#a9adb1;
--grid:#383b3e;--warn:#ffc48a;--warnback:#33240f;%(dark)s}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:82rem;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,"Segoe UI","DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.3rem;margin:2.5rem 0 .5rem}
h3{font-size:1.05rem;margin:1.75rem 0 .25rem}p,ul{margin:.5rem 0;max-width:48rem}
.muted,figcaption{color:var(--muted)}
.plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%%,20rem),1fr))}
figure{margin:0;padding:.75rem;background:var(--card);border-radius:.5rem}
figure svg{display:block;width:100%%;height:auto}
figure svg text{font-family:system-ui,"Segoe UI","DejaVu Sans",sans-serif!important}
figure strong{display:block;font-weight:600}figcaption{font-size:.85rem;line-height:1.35}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;list-style:none;padding:0;max-width:none;font-size:.9rem}
.legend svg{width:28px;height:16px;vertical-align:-3px;margin-right:.35rem}
.warn{background:var(--warnback);color:var(--warn);border-left:4px solid;padding:.5rem .75rem;max-width:none}
.warn ul{max-width:none;padding-left:1.2rem;margin:0}
details{margin:.75rem 0}summary{cursor:pointer;font-weight:600}
.scroll{overflow-x:auto}:focus-visible{outline:3px solid var(--s0);outline-offset:2px}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--grid);text-align:right;white-space:nowrap}
thead th{vertical-align:bottom;white-space:normal}
.l{text-align:left}tbody th{position:sticky;left:0;background:var(--paper);font-weight:400}
dl{display:grid;grid-template-columns:minmax(6rem,max-content) minmax(0,1fr);gap:.15rem 1rem}
dt{color:var(--muted)}dd{margin:0}code{font-size:.875rem}
@media(max-width:30rem){dl{display:block}dd{margin-bottom:.4rem}}
@media print{figure{break-inside:avoid}}
"""


def esc(text):
    return html.escape(str(text), quote=True)


def number(value):
    """Three digits or four, or all before the point. The exact figure is the element's value."""
    if value == 0 or isinstance(value, int):
        text = f"{value:.0f}"
    elif value >= 100:
        text = f"{value:.{1 if value < 1000 else 0}f}"
    else:
        text = f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 1e-9 else f"{value:.2e}"
    return f'<data value="{esc(json.dumps(value))}">{text}</data>'


def known(value):
    """What is 0 was not measured."""
    return number(value) if value > 0 else "\u2013"


def sampling(temperature):
    return "greedy" if temperature == 0 else f"temperature {temperature:.3g}"


def bytes_text(count):
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:  # 999.6 MB would be 1e+03 MB
            return f"{count / size:.{3 if count < 999.5 * size else 15}g} {unit}"
    return f"{count:.0f} bytes"


@dataclasses.dataclass
class Point:
    run: Run
    number: int  # of the run, from 1
    row: Row
    base: Row    # `off` at the same temperature and concurrency, or None
    family: str  # the drafter and what it drafts with, without the draft length
    k: int       # draft tokens, 0: not known or none

    def name(self):
        return self.family + (f", K {self.k}" if self.k else "")

    def bound(self):
        """The largest S of a drafter of K tokens in a row that costs nothing and is always right; 0: not known."""
        n, cost = self.row.concurrency, self.run.verify_cost
        if not self.k or n not in cost or n * (self.k + 1) not in cost:
            return 0
        return (self.k + 1) * cost[n] / cost[n * (self.k + 1)]


def describe(run, route):
    """(family, K) of a route."""
    plugin, config, nodes_max = run.drafters.get(route, ("", {}, 0))
    k = run.draft_tokens.get(route, config.get("draft_tokens"))
    k = min(k, nodes_max) if isinstance(k, int) and not isinstance(k, bool) and k > 0 else 0
    kind = visible(plugin).rsplit(".", 1)[-1]
    if plugin == REPLAY:
        share = config.get("acceptance")
        exact = isinstance(share, (int, float)) and 0 <= share <= 1
        return (f"replay, {100 * share:.3g} % right" if exact else route), k
    weights = next((os.path.basename(visible(config[key]).rstrip("/")) for key in ("model", "weights")
                    if isinstance(config.get(key), str)), "")
    detail = ", ".join(part for part in (kind if kind != route else "", weights) if part)
    return route + (f" ({detail})" if detail else ""), k


def points_of(runs):
    points = []
    for i, run in enumerate(runs):
        bases = {(row.temperature, row.concurrency): row for row in run.rows
                 if row.route == "off" and not row.is_control}
        for row in run.rows:
            family, k = ("off (again)" if row.is_control else "off", 0) if row.route == "off" else describe(
                run, row.route)
            points.append(Point(run, i + 1, row, bases.get((row.temperature, row.concurrency)), family, k))
    return points


def grouped(points, key):
    groups = collections.defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return groups


# ---- parts of the page -----------------------------------------------------------------------------

def swatch(i, line=True):
    place, marker = style(i)
    color = f"var(--s{place})"
    stroke = f'<path d="M0 8h28" stroke="{color}" stroke-width="2"/>' if line else ""
    return (f'<svg viewBox="0 0 28 16" aria-hidden="true">{stroke}'
            f'<path d="{MARKER_PATHS[marker]}" fill="{color}"/></svg>')


def stroke_swatch(dashes):
    return ('<svg viewBox="0 0 28 16" aria-hidden="true"><path d="M0 8h28" stroke="var(--muted)" stroke-width="2" '
            f'stroke-dasharray="{dashes}"/></svg>')


def legend(names, line=True, notes=()):
    items = [swatch(i, line) + esc(name) for i, name in enumerate(names)]
    items += [stroke_swatch(dashes) + esc(text) for dashes, text in notes]
    return '<ul class="legend">' + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def table(label, heads, rows):
    """heads: (text, is on the left). rows: lists of HTML; the first cell names the row."""
    mark = [' class="l"' if left else "" for _, left in heads]
    head = "".join(f'<th scope="col"{m}>{esc(text)}</th>' for (text, _), m in zip(heads, mark))
    body = "".join("<tr>" + "".join(
        f'<th scope="row"{mark[i]}>{cell}</th>' if i == 0 else f"<td{mark[i]}>{cell}</td>"
        for i, cell in enumerate(row)) + "</tr>" for row in rows)
    return (f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(label)}">'
            f'<table aria-label="{esc(label)}">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")


POINT_HEADS = [("drafter", True), ("run", False), ("K", False), ("at once", False), ("input tokens", False),
               ("tokens/s", False), ("TPOT ms p50", False), ("p90", False), ("p99", False),
               ("TTFT ms p50", False), ("tau", False), ("acceptance", False), ("drafting", False), ("S", False),
               ("95 % from", False), ("to", False), ("eta", False), ("bound of S", False), ("same text", True)]


def point_cells(point):
    row = point.row
    drafts = row.requests > 0 and row.route != "off"
    return [esc(point.family), f'<a href="#run{point.number}">{point.number}</a>', str(point.k or "\u2013"),
            number(row.concurrency), known(row.input_tokens), known(row.tokens_per_s), known(row.tpot_ms["p50"]),
            known(row.tpot_ms["p90"]), known(row.tpot_ms["p99"]), known(row.ttft_ms["p50"]), known(row.tau),
            number(row.acceptance_rate) if drafts else "\u2013", number(row.drafting) if drafts else "\u2013",
            known(row.speedup), known(row.speedup_low), known(row.speedup_high), known(row.eta),
            known(point.bound()),
            "\u2013" if not row.requests else "yes" if row.identical else "no" if row.promises_text else "not promised"]


def details(label, points):
    rows = [point_cells(point) for point in points]
    return (f"<details><summary>The figures as a table ({len(rows)} rows)</summary>"
            f"{table(label, POINT_HEADS, rows)}</details>")


def figures(parts):
    """parts: (title, caption, SVG)"""
    return '<div class="plots">' + "".join(
        f"<figure><strong>{esc(title)}</strong>{plot}<figcaption>{esc(caption)}</figcaption></figure>"
        for title, caption, plot in parts) + "</div>"


class Page:
    """What a section needs to know of all runs."""

    def __init__(self, runs):
        self.runs = runs
        self.points = points_of(runs)
        self.settings = list(dict.fromkeys(run.setting() for run in runs))
        self.plots = 0

    def plot_name(self):
        self.plots += 1
        return f"p{self.plots}"

    def circumstances(self, point):
        """(setting, temperature, output tokens of `off`): a plot holds points with these in common."""
        base = point.base or point.row
        output = round(base.tokens / base.requests) if base.requests else 0
        return (self.settings.index(point.run.setting()), point.row.temperature, output)

    def label(self, *parts, circumstances):
        setting, temperature, output = circumstances
        parts = [*parts, sampling(temperature), f"answers of {output} tokens" if output else "",
                 f"setting {setting + 1}" if len(self.settings) > 1 else ""]
        return ", ".join(part for part in parts if part)

    def block(self, label, legend_html, plot, points):
        """plot(name, title, measure) -> SVG"""
        parts = [(title, caption, plot(self.plot_name(), f"{title}: {label}", measure))
                 for measure, (title, caption) in MEASURES.items()]
        return f"<h3>{esc(label)}</h3>{legend_html}{figures(parts)}{details(label, points)}"


def prompts_text(tokens):
    return f"prompts of {tokens:g} tokens" if tokens else ""


def drafters_section(page):
    groups = grouped(page.points, lambda point: (*page.circumstances(point), point.row.input_tokens))
    body = []
    for (*circumstances, tokens), points in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        # `off` is the unit of S; its second measurement is the noise.
        drafting = [p for p in points if p.row.is_control or p.family != "off"]
        if all(point.row.is_control for point in drafting):
            continue
        drafting.sort(key=lambda p: (not p.row.is_control, p.family, p.k, p.row.concurrency, p.number))
        levels = sorted({point.row.concurrency for point in drafting})
        lines = grouped(drafting, Point.name)
        body.append(page.block(
            page.label(prompts_text(tokens), circumstances=circumstances),
            legend([f"{level} at once" for level in levels], line=False),
            lambda name, title, measure: dot_plot(name, title, lines, levels, measure),
            [point for point in points if point.family == "off"] + drafting))
    return section("drafters", "By drafter and draft model",
                   "A dot is a measurement; S has intervals, the other two have none. off (again) is plain decoding, measured a "
                   "second time: its distance from 1 is the noise of its run.", body)


def draft_tokens_section(page):
    groups = grouped((point for point in page.points if point.k),
                     lambda p: (p.family, *page.circumstances(p), p.row.input_tokens))
    body = []
    for (family, *circumstances, tokens), points in sorted(groups.items(), key=lambda item: item[0]):
        if len({point.k for point in points}) < 2:
            continue
        series = {f"{level} at once": [(point.k, point) for point in same] for level, same in sorted(
            grouped(points, lambda point: point.row.concurrency).items())}
        notes = [("2 3", "off, in the same run")]
        if any(point.bound() for point in points):
            notes.append(("6 3", "bound at full acceptance"))
        body.append(page.block(
            page.label(family, prompts_text(tokens), circumstances=circumstances), legend(series, notes=notes),
            lambda name, title, measure: line_plot(name, title, series, measure, "K, draft tokens", False, True),
            sorted(points, key=lambda p: (p.row.concurrency, p.k, p.number))))
    return section("draft-tokens", "By draft tokens and concurrency",
                   "The bound is that of a drafter that costs nothing and is always right, with c requests at once: "
                   "S \u2264 (K + 1) V(c) / V(c (K + 1)), where V(n) is the time of a forward of n rows relative to "
                   "that of one row. TPOT is at least that of off, divided by it. The bound is drawn where the run "
                   "measured both V (--verify-cost). A line joins medians where several runs measured the same.", body)


def input_section(page):
    groups = grouped((p for p in page.points if not p.row.is_control and p.row.input_tokens),
                     lambda p: (p.row.concurrency, *page.circumstances(p)))
    body = []
    for (concurrency, *circumstances), points in sorted(groups.items(), key=lambda item: item[0]):
        by_name = sorted(grouped(points, Point.name).items(), key=lambda item: (item[0] != "off", item[0]))
        # Only what was measured at several lengths; a run may hold other drafters beside it.
        series = {name: sorted(((p.row.input_tokens, p) for p in same), key=lambda pair: pair[0])
                  for name, same in by_name if len({p.row.input_tokens for p in same}) > 1}
        lengths = {x for name, pairs in series.items() if name != "off" for x, _ in pairs}
        if not lengths:
            continue
        if "off" in series:
            series["off"] = [(x, p) for x, p in series["off"] if x in lengths]
        body.append(page.block(
            page.label(f"{concurrency} at once", circumstances=circumstances), legend(series),
            lambda name, title, measure: line_plot(name, title, series, measure,
                                                   "input tokens of the median prompt (logarithmic)", True, False),
            [point for pairs in series.values() for _, point in pairs]))
    return section("input", "By input length",
                   "Each length is a run of its own, so a line compares runs. Look at S first: its base is of the same "
                   "run.", body)


def cost_section(page):
    by_setting = collections.defaultdict(list)
    for i, run in enumerate(page.runs):
        if run.verify_cost:
            by_setting[page.settings.index(run.setting())].append((i + 1, run.verify_cost))
    body = []
    for setting, costs in sorted(by_setting.items()):
        names = [f"run {i}" for i, _ in costs]
        rows = sorted({n for _, cost in costs for n in cost})
        heads = [("n", False)] + [(f"V(n), {name}", False) for name in names] + [
            (f"n / V(n), {name}", False) for name in names]
        cells = [[str(n)] + [number(c[n]) if n in c else "\u2013" for _, c in costs] +
                 [number(n / c[n]) if n in c else "\u2013" for _, c in costs] for n in rows]
        title, label = "V(n): time of n rows, relative to one row", f"setting {setting + 1}"
        if len(page.settings) > 1:
            body.append(f"<h3>{label}</h3>")
            label = f"{title}: {label}"
        else:
            label = title
        body += [legend(names, notes=[("2 3", "n: a forward of n rows costs n forwards, drafting gains nothing")]),
                 figures([(title, "medians, on the model alone", cost_plot(page.plot_name(), label, costs))]),
                 "<details><summary>The figures as a table "
                 f"({len(cells)} rows)</summary>{table(label, heads, cells)}</details>"]
    return section("cost", "The cost of verifying",
                   "The flatter the line, the more a right guess is worth: one request gains at most n / V(n) from n - 1 "
                   "draft tokens.", body)


def section(name, title, lead, body):
    if not body:
        return ""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{esc(title)}</h2><p>{esc(lead)}</p>{"".join(body)}</section>'


SETTING_NAMES = ["model", "weights", "device", "processor", "instructions", "threads", "version", "program", "top-p and top-k"]


def warnings(page):
    """What keeps figures from being compared or believed."""
    found = []
    for place, name in enumerate(SETTING_NAMES):
        by_value = collections.defaultdict(list)
        for i, run in enumerate(page.runs):
            by_value[run.setting()[place]].append(str(i + 1))
        if len(by_value) > 1:
            parts = (f"{short(str(value or 'not known'))} ({'run' if len(numbers) == 1 else 'runs'} {', '.join(numbers)})"
                     for value, numbers in by_value.items())
            found.append(f"Not comparable: the runs differ in {name}: {'; '.join(parts)}. They are drawn apart.")
    for i, run in enumerate(page.runs):
        if not run.complete:
            found.append(f"Run {i + 1} ended early: it has what was measured until then.")
        if not run.fresh_drafters:
            found.append(f"Run {i + 1} is of a daemon, whose drafters keep what earlier requests taught them. Its processor "
                         "and program are not known: they may differ from those of another daemon.")
        if not any(row.is_control for row in run.rows):
            found.append(f"Run {i + 1} did not measure off a second time: its noise is not known.")
        if run.prompts == 1:
            found.append(f"Run {i + 1} has one prompt: its intervals are over the rounds of that prompt and say nothing "
                         f"of others{', and with one round they have no width' if run.repeat == 1 else ''}.")
        cost = sorted(run.verify_cost.items())
        falls = [(n, more) for (n, time), (more, time_of_more) in zip(cost, cost[1:]) if time_of_more < 0.8 * time]
        if falls:
            found.append(f"Run {i + 1}: V({falls[0][0]}) is larger than V({falls[0][1]}): the machine did something "
                         "else meanwhile, so its bounds may be wrong.")
    for point in page.points:
        row, where = point.row, f"Run {point.number}, {sampling(point.row.temperature)}, {point.row.concurrency} at once"
        if not row.identical and row.promises_text:
            found.append(f"{where}: {point.family} wrote another text than off, although it promises the same: "
                         f"{row.first_difference}")
        if point.family == "off" and row.requests_with_loops:
            found.append(f"{where}: {row.requests_with_loops} of {row.requests} answers of off end in a loop, which "
                         "flatters drafters that look for repetition. rows_without_loops of the file leaves them out.")
        if row.is_control and row.speedup and not row.speedup_low <= 1 <= row.speedup_high:
            found.append(f"{where}: noise: off measures {row.speedup:.3f} [{row.speedup_low:.2f}, "
                         f"{row.speedup_high:.2f}] of itself.")
    if not found:
        return ""
    return ('<section class="warn" aria-label="Warnings"><strong>Before you compare</strong><ul>' + "".join(f"<li>{esc(text)}</li>" for text in found) +
            "</ul></section>")


def runs_section(page):
    body = []
    for i, run in enumerate(page.runs):
        bases = [row for row in run.rows if row.route == "off" and not row.is_control and row.concurrency == 1
                 and row.tpot_ms["p50"] > 0]
        facts = [("file", esc(run.file)), ("command", f"<code>{esc(run.command)}</code>"),
                 ("model", esc(run.model)), ("weights", f"{esc(bytes_text(run.weight_bytes))} "
                                             f'(<data value="{run.weight_bytes}">{run.weight_bytes}</data> bytes)'),
                 ("device", esc(run.device)), ("processor", esc(run.processor or "not known")),
                 ("threads", f"{run.threads or 'not known'} ({esc(run.isa)})"),
                 ("specd", esc(run.version) + ", " + (f"specd-bench <code>{esc(run.program_sha256[:16])}</code> (SHA-256)"
                                                     if run.program_sha256 else "a daemon")),
                 ("sampling", esc(run.cuts or "top-p and top-k are not known")), ("prompts, rounds", f"{run.prompts}, {run.repeat}"),
                 ("drafters", "fresh in every pass" if run.fresh_drafters else "those of a daemon")]
        if len(page.settings) > 1:
            facts.insert(0, ("setting", str(page.settings.index(run.setting()) + 1)))
        if bases:
            rate = run.weight_bytes / bases[0].tpot_ms["p50"] * 1e3
            facts.append(("weights / TPOT of off", f"{esc(bytes_text(rate))}/s: what plain decoding reads at least"))
        body.append(f'<h3 id="run{i + 1}">Run {i + 1}</h3><dl>' +
                    "".join(f"<dt>{esc(name)}</dt><dd>{text}</dd>" for name, text in facts) + "</dl>")
    return section("runs", "The runs", "Compare figures only within one run, or of runs that differ in one thing.", body)


WORDS = [("off", "plain decoding, the base of every comparison"),
         ("tokens/s", "all tokens / wall time of the route's turns, prefill included"),
         ("TTFT, TPOT", "time to the first token; time per token after it, by the client's clock"),
         ("tau", "tokens per decode step"), ("acceptance", "share of all drafted tokens that were accepted"),
         ("drafting", "share of the wall time inside the drafter"),
         ("S", "TPOT of off / TPOT of the route, prompt by prompt: median, and its 95 % interval by bootstrap over prompts"),
         ("eta", "S / tau: the share of the drafts' gain that remains"),
         ("K", "draft tokens, one after the other, that the drafter was set to; a tree may hold more nodes"),
         ("same text", "the token ids equal those of off")]


def summary(page):
    """The best of the real drafters that keep their promise, one request at a time."""
    candidates = [p for p in page.points if p.family != "off" and not p.row.is_control and p.row.concurrency == 1
                  and p.row.speedup > 0 and (p.row.identical or not p.row.promises_text) and p.run.drafters.get(p.row.route, ("",))[0] != REPLAY]
    if not candidates:
        return ""
    best = max(candidates, key=lambda p: p.row.speedup)
    row = best.row
    return (f"<p>Largest speedup of one request at a time: <strong>{number(row.speedup)}x</strong> "
            f"[{number(row.speedup_low)}, {number(row.speedup_high)}] by {esc(best.name())}, "
            f"{esc(sampling(row.temperature))}, with {number(row.tau)} tokens per step "
            f'(eta {number(row.eta)}; <a href="#run{best.number}">run {best.number}</a>).</p>')


def page_html(runs):
    page = Page(runs)
    first = runs[0]
    same = (f"{os.path.basename(first.model)} \u00b7 {bytes_text(first.weight_bytes)} of weights \u00b7 {first.device}"
            f"{', ' + first.processor if first.processor else ''} \u00b7 {first.threads or '?'} threads"
            if len(page.settings) == 1 else f"{len(page.settings)} settings, see the runs")
    sections = [drafters_section(page), draft_tokens_section(page), input_section(page), cost_section(page)]
    title = f"specd-bench: {len(runs)} run{'s' if len(runs) > 1 else ''}"
    colors = {name: ";".join(f"--s{i}:{color}" for i, color in enumerate(palette))
              for name, palette in (("light", LIGHT), ("dark", DARK))}
    words = "".join(f"<dt>{esc(word)}</dt><dd>{esc(text)}</dd>" for word, text in WORDS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{esc(title)}</title>
<style>{STYLE % colors}</style>
</head>
<body>
<header><h1>{esc(title)}</h1><p class="muted">{esc(same)}</p>{summary(page)}</header>
<main>
{warnings(page)}
{"".join(sections)}
{runs_section(page)}
<section aria-labelledby="words"><h2 id="words">Words</h2><dl>{words}</dl></section>
</main>
</body>
</html>
"""


def main(arguments):
    parser = argparse.ArgumentParser(prog="report.py", description="Makes a page of HTML with plots and tables of runs.",
                                     epilog="Exit codes: 0 fine, 1 no matplotlib, or the page cannot be written, "
                                     "2 a wrong command line or a file that is no run.")
    parser.add_argument("files", nargs="+", metavar="RUN.json", help="what specd-bench run --json wrote")
    parser.add_argument("-o", metavar="FILE", help="where the page goes; default: standard output")
    options = parser.parse_args(arguments)
    try:
        runs = read_runs(options.files)
        if options.o and any(os.path.realpath(options.o) == os.path.realpath(file) for file in options.files):
            raise BadRun(f"-o: expected a file that is not one of the runs, found {visible(options.o)}")
    except BadRun as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    if matplotlib is None:
        print("report.py: expected matplotlib, found none: install Debian's python3-matplotlib", file=sys.stderr)
        return 1
    text = page_html(runs).encode("utf-8")
    try:
        if options.o:
            with open(options.o, "wb") as file:
                file.write(text)
        else:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
    except OSError as error:
        print(f"report.py: {visible(options.o or 'standard output')}: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
