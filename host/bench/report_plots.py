"""The plots of report.py as SVG for a page of HTML, by Debian's matplotlib (3.6).

Points are those of report.py: they have a row of a run, the row of `off` beside it, and a bound.
"""
import collections
import html
import io
import math
import re
import statistics
import warnings

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.transforms import ScaledTranslation
except ImportError:
    matplotlib = None

# Stand for the page's colors in an SVG, since those depend on its scheme.
INK, MUTED, GRID = "#010203", "#010204", "#010205"
SERIES = ["#020301", "#020302", "#020303", "#020304", "#020305", "#020306"]
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)",
             **{color: f"var(--s{i})" for i, color in enumerate(SERIES)}}
MARKERS = ["o", "s", "^", "D", "v", "P"]

LABEL_MAX = 44  # characters of a name in a plot; the table has all


def short(text):
    return text if len(text) <= LABEL_MAX else text[:LABEL_MAX - 1] + "\u2026"


def style(i):
    """(place in SERIES, place in MARKERS) of series i: no two of the first 36 have the same."""
    return i % len(SERIES), (i + i // len(SERIES)) % len(MARKERS)


MEASURES = {
    "speedup": ("Speedup S, times off", "median of the prompts, with its 95 % interval"),
    "tokens_per_s": ("Throughput, tokens/s", "all requests together, prefill included"),
    "tpot": ("TPOT, ms per token", "median of the requests"),
}


def value_of(row, measure):
    """(value, distance down, distance up) of the error bar; None: not measured."""
    if measure == "speedup":
        value, low, high = row.speedup, row.speedup_low, row.speedup_high
    else:
        value = low = high = row.tpot_ms["p50"] if measure == "tpot" else row.tokens_per_s
    return (value, value - low, high - value) if value > 0 else None


def new_plot(height=2.5, left=0.47, bottom=0.43):
    """Sizes in inches; a phone shows the width as it is, others show it larger."""
    width, top, right = 3.7, 0.08, 0.2  # half of a tick's label may lie beyond the axis
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((left / width, bottom / height, (width - left - right) / width,
                            (height - bottom - top) / height))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.set_axisbelow(True)
    return figure, axes


def tag_of_page(name, tag):
    """A tag with the page's colors, and with ids that no other plot has."""
    tag = re.sub(r"#01020[345]|#02030[1-6]", lambda match: VARIABLES[match[0]], tag)
    tag = re.sub(r'id="([^"]*)"', rf'id="{name}-\1"', tag)
    return re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", tag)


def svg(figure, name, label):
    out = io.StringIO()
    # The salt keeps the ids of one plot apart from those of the others.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's font draws the text
        figure.savefig(out, format="svg", transparent=True,
                       metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # Only within tags: a name may look like any of this.
    text = re.sub(r"<[^>]*>", lambda match: tag_of_page(name, match[0]), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)


def ticks_at(axes, values, by_factor):
    """Ticks where the points are, without those too near to the one before."""
    ticks = sorted(set(values))
    scale = math.log2 if by_factor else float
    if by_factor:
        axes.set_xscale("log", base=2)
    kept = ticks[:1]
    for tick in ticks[1:]:
        if scale(tick) - scale(kept[-1]) >= 0.08 * (scale(ticks[-1]) - scale(ticks[0])):
            kept.append(tick)
    axes.set_xticks(kept, [f"{tick:g}" for tick in kept])
    axes.set_xticks([], minor=True)


def medians(pairs):
    """One (x, y) for each x."""
    by_x = collections.defaultdict(list)
    for x, y in pairs:
        by_x[x].append(y)
    return [(x, statistics.median(by_x[x])) for x in sorted(by_x)]


def whiskers(values, measure):
    return None if measure != "speedup" else [[v[1] for v in values], [v[2] for v in values]]


def line_plot(name, title, series, measure, x_label, by_factor, with_bound):
    """series: name -> [(x, Point)]. A line joins the medians where several runs measured the same."""
    figure, axes = new_plot()
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    ticks, tops = [], [0]

    def line(pairs, color, style):
        joined = medians(pairs)
        tops.extend(y for _, y in joined)
        axes.plot([x for x, _ in joined], [y for _, y in joined], color=color, linewidth=1.5, linestyle=style)

    for i, (series_name, points) in enumerate(series.items()):
        if measure == "speedup" and series_name == "off":
            continue  # the line at 1
        color, marker = SERIES[style(i)[0]], MARKERS[style(i)[1]]
        shown = [(x, value_of(point.row, measure)) for x, point in points]
        shown = [(x, value) for x, value in shown if value]
        ticks += [x for x, _ in shown]
        tops += [value + up for _, (value, _, up) in shown]
        line([(x, value[0]) for x, value in shown], color, "-")
        aside = ScaledTranslation((i - (len(series) - 1) / 2) * 4 / 72, 0, figure.dpi_scale_trans)
        axes.errorbar([x for x, _ in shown], [value[0] for _, value in shown],
                      yerr=whiskers([value for _, value in shown], measure), color=color, marker=marker,
                      markersize=5, linestyle="", elinewidth=1, capsize=2.5,
                      transform=axes.transData + aside if measure == "speedup" else axes.transData)
        if not with_bound:
            continue
        based = [(x, point.bound(), value_of(point.base, measure)) for x, point in points if point.base]
        based = [(x, bound, base[0]) for x, bound, base in based if base]
        if measure != "speedup":
            line([(x, base) for x, _, base in based], color, ":")
        if measure != "tokens_per_s":
            line([(x, bound if measure == "speedup" else base / bound) for x, bound, base in based if bound],
                 color, (0, (5, 2.5)))
    if measure == "speedup":
        axes.axhline(1, color=MUTED, linewidth=1)
        tops.append(1)
    ticks_at(axes, ticks, by_factor)
    axes.set_ylim(0, 1.06 * max(tops) or 1)
    axes.margins(x=0.06)
    axes.set_xlabel(x_label, fontsize=9, color=INK, labelpad=3)
    return svg(figure, name, title)


def dot_plot(name, title, lines, levels, measure):
    """lines: name -> points by concurrency, each at a height of its own. levels: the concurrencies."""
    places, height = {}, 0
    names = []
    for line, points in lines.items():
        names.append((height, short(line)))
        height += 1.15
        for point in points:
            places[id(point)] = height
            height += 0.9
        height += 0.8
    inches = 0.4 + 0.14 * height
    figure, axes = new_plot(inches, 0.2, 0.28)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_yticks([])
    for place, text in names:
        axes.text(0.012, place, text, fontsize=9, color=INK, va="center", parse_math=False,
                  transform=axes.get_yaxis_transform())
    tops = [0]
    for i, level in enumerate(levels):
        shown = [(places[id(point)], value_of(point.row, measure)) for points in lines.values() for point in points
                 if point.row.concurrency == level]
        shown = [(y, value) for y, value in shown if value]
        tops += [value + up for _, (value, _, up) in shown]
        axes.errorbar([value[0] for _, value in shown], [y for y, _ in shown],
                      xerr=whiskers([value for _, value in shown], measure), color=SERIES[style(i)[0]],
                      marker=MARKERS[style(i)[1]], markersize=4.5, linestyle="", elinewidth=1.2, capsize=2)
    if measure == "speedup":
        axes.axvline(1, color=MUTED, linewidth=1)
        tops.append(1)
    axes.set_xlim(0, 1.05 * max(tops) or 1)
    axes.set_ylim(height - 0.8, -0.8)
    return svg(figure, name, title)


def cost_plot(name, title, costs):
    figure, axes = new_plot()
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    rows = sorted({n for _, cost in costs for n in cost})
    for i, (_, cost) in enumerate(costs):
        axes.plot(sorted(cost), [cost[n] for n in sorted(cost)], color=SERIES[style(i)[0]],
                  marker=MARKERS[style(i)[1]], markersize=4, linewidth=1.4)
    axes.plot(rows, rows, color=MUTED, linewidth=1.2, linestyle=":")
    top = max(value for _, cost in costs for value in cost.values())
    axes.set_ylim(0, 1.08 * top)
    axes.set_xlim(0, 1.04 * rows[-1])
    axes.set_xlabel("n, rows of one forward", fontsize=9, color=INK, labelpad=3)
    return svg(figure, name, title)
