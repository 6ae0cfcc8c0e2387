"""Pictures of what algorithms decide. Imported only where one is drawn: it needs matplotlib.

Colours are those of Okabe and Ito, which people with colour-blindness can tell apart; what matters has a mark, too.
"""

import io
import math

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#B0B0B0"
COLOURS = {"end": BLUE, "stopped": ORANGE, "paused": PURPLE}
WORDS = {"end": "ran to its end", "stopped": "stopped", "paused": "paused for good"}
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "path",
    "svg.hashsalt": "trialpod",  # the same picture is the same file
}
SIZE = (7.2, 3.5)  # inches
ERROR = "error"
"""The metric of the examples."""
PASSES = "iteration (passes over the data)"


def kind_of(experiment):
    """Return which picture shows best what was decided: the name of one of the functions below."""
    decisions = [decision for trial in experiment.trials for decision in trial.decisions]
    if any(decision["kind"] == "exploit" for decision in decisions):
        return "lineage"
    if any(decision["reason"].get("source") == "resources" for decision in decisions):
        return "resources"
    searched = "searchAlgorithm" in experiment.spec and "scheduler" not in experiment.spec
    return "samples" if searched else "curves"


def draw(experiment, target, kind="auto"):
    """Draw an experiment into a file; `kind` is "curves", "lineage", "samples", "resources", or "auto"."""
    kinds = {"curves": curves, "lineage": lineage, "samples": samples, "resources": resources}
    with plt.rc_context(STYLE):
        figure = kinds[kind_of(experiment) if kind == "auto" else kind](experiment)
        save(figure, target)
        plt.close(figure)


def save(figure, target):
    """Write an SVG, or a PNG of few colours: what is drawn here takes 20 to 50 kB."""
    if target.suffix == ".svg":
        figure.savefig(target, metadata={"Date": None, "Creator": None})
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, metadata={"Software": None})
    with Image.open(buffer) as image:
        few = image.convert("RGB").quantize(96, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


# Learning curves, and which trial got the next pass.


def curves(experiment):
    """Return curves with rungs, stops and pauses, beside the order in which the work was done."""
    figure, (left, right) = plt.subplots(1, 2, figsize=SIZE, layout="constrained", width_ratios=[1.15, 1])
    _curves(left, experiment)
    best = experiment.best()
    ranks = {clock: place for place, clock in enumerate(sorted(_clocks(experiment)), 1)}
    for trial in experiment.trials:
        places = [ranks[row["clock"]] for row in trial.rows]
        colour = "black" if trial is best else COLOURS[trial.fate]
        for stretch in _stretches(places):
            xs = [stretch[0] - 0.5, stretch[-1] + 0.5]
            right.plot(xs, [trial.number] * 2, lw=3.2, color=colour, solid_capstyle="butt")
        _ends(right, trial, places, [trial.number] * len(places))
    right.set(xlabel="passes of all trials together", ylabel="trial", title="which trial got them")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.invert_yaxis()
    return figure


def _curves(axes, experiment):
    metric = experiment.metric
    best = experiment.best()
    rungs, cutoffs = _rungs(experiment)
    for rung in rungs:
        axes.axvline(rung, color=GREY, lw=0.8, ls=":", zorder=0)
    for trial in experiment.trials:
        xs = [row["training_iteration"] for row in trial.rows]
        ys = [row[metric] for row in trial.rows]
        top = trial is best
        axes.plot(xs, ys, color="black" if top else COLOURS[trial.fate], lw=1.8 if top else 0.8,
                  alpha=1 if top else 0.75, zorder=3 if top else 2)  # fmt: skip
        _ends(axes, trial, xs, ys)
    for rung, cutoff in cutoffs:
        axes.plot([rung / 1.06, rung * 1.06], [cutoff] * 2, color="black", lw=0.8, zorder=4)
    _log(axes.yaxis, [1, 2, 3, 5, 10, 20, 30, 50, 100])
    if rungs:
        axes.set_xscale("log")
        last = max(row["training_iteration"] for trial in experiment.trials for row in trial.rows)
        _ticks(axes.xaxis, sorted({1, *rungs, last}))
    axes.set(xlabel=PASSES, ylabel=_label(metric), title="learning curves")
    _legend(axes, experiment, cutoffs)


def _ends(axes, trial, xs, ys):
    """Mark where a trial was stopped or paused."""
    if not xs:
        return
    at = {row["training_iteration"]: place for place, row in enumerate(trial.rows)}
    for decision in trial.decisions:
        place = at.get(decision["iteration"])
        over = trial.fate == "stopped" and place == len(xs) - 1  # what was stopped there had paused for that
        if decision["kind"] == "pause" and place is not None and not over:
            axes.plot(xs[place], ys[place], "o", ms=3.6, mfc="white", mec=COLOURS[trial.fate], mew=0.9, zorder=5)
    if trial.fate == "stopped":
        axes.plot(xs[-1], ys[-1], "x", ms=4.5, mew=1.3, color=COLOURS["stopped"], zorder=6)


def _legend(axes, experiment, cutoffs):
    fates = {trial.fate for trial in experiment.trials}
    handles = [Line2D([], [], color="black", lw=1.8, label="best")]
    for fate in ("end", "stopped", "paused"):
        if fate in fates:
            mark = {"marker": "x", "mew": 1.3, "ms": 4.5} if fate == "stopped" else {}
            handles.append(Line2D([], [], color=COLOURS[fate], lw=1, label=WORDS[fate], **mark))
    pauses = [decision for trial in experiment.trials for decision in trial.decisions if decision["kind"] == "pause"]
    if pauses:
        moved = any(decision["reason"].get("source") == "resources" for decision in pauses)
        label = "given other resources" if moved else "paused"
        handles.append(Line2D([], [], ls="", marker="o", mfc="white", mec="0.3", ms=3.6, label=label))
    if cutoffs:
        handles.append(Line2D([], [], ls="", marker="_", color="black", label="cutoff then"))
    axes.figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handlelength=1.5)


def _rungs(experiment):
    """Return the rungs that trials met, and the cutoffs that some were stopped by, with their rungs."""
    rungs, cutoffs = set(), set()
    for trial in experiment.trials:
        for decision in trial.decisions:
            reason = decision["reason"]
            if reason.get("rung") is not None:
                rungs.add(reason["rung"])
                if reason.get("cutoff") is not None:
                    cutoffs.add((reason["rung"], reason["cutoff"]))
    return sorted(rungs), sorted(cutoffs)


def _clocks(experiment):
    return [row["clock"] for trial in experiment.trials for row in trial.rows]


def _stretches(places):
    """Return what was done without a break: lists of places one after the other."""
    found = []
    for place in places:
        if found and place == found[-1][-1] + 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found


# Populations.


def lineage(experiment):
    """Return the errors and the values of each member over time, with the ancestors of the best one in black."""
    names = _mutated(experiment)
    figure, grid = plt.subplots(1, 1 + len(names), figsize=(SIZE[0], 3.3), layout="constrained", squeeze=False)
    panels = grid[0]
    line = _ancestors(experiment)
    for axes, key in zip(panels, [experiment.metric, *names], strict=True):
        for trial in experiment.trials:
            for piece in _pieces(trial):
                xs = [row["training_iteration"] for row in piece]
                ys = [_value(row, key) for row in piece]
                axes.plot(xs, ys, color=SKY, lw=0.9, zorder=1)
        for exploit in _exploits(experiment):
            start, end = (_value(row, key) for row in (exploit["source"], exploit["row"]))
            xs = [exploit["source"]["training_iteration"], exploit["row"]["training_iteration"]]
            axes.plot(xs, [start, end], color=ORANGE, lw=0.7, alpha=0.6, zorder=2)
            axes.plot(xs[1], end, "o", ms=2.6, color=ORANGE, zorder=3)
        xs = [row["training_iteration"] for row in line]
        axes.plot(xs, [_value(row, key) for row in line], color="black", lw=1.7, zorder=4)
        values = [_value(row, key) for trial in experiment.trials for row in trial.rows]
        if key == experiment.metric:
            _log(axes.yaxis, [1, 2, 3, 5, 10, 20, 30, 50, 100])
            axes.set(title=_label(key))
        else:
            if _is_positive(values) and max(values) / min(values) > 100:
                axes.set_yscale("log")
            axes.set(title=key)
    panels[len(panels) // 2].set_xlabel(PASSES)
    handles = [
        Line2D([], [], color="black", lw=1.7, label="the best one and its ancestors"),
        Line2D([], [], color=SKY, lw=1, label="the others"),
        Line2D([], [], color=ORANGE, lw=0.8, marker="o", ms=2.6, label="copies another one, with new values"),
    ]
    if len(experiment.trials) == 1:
        handles = [Line2D([], [], color="black", lw=1.7, label="the only one, whose values follow a schedule")]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=1.8)
    return figure


def _mutated(experiment):
    """Return the parameters that differ between the results of at least one trial."""
    found = []
    for trial in experiment.trials:
        for key, value in trial.rows[0]["config"].items():
            if key not in found and any(row["config"][key] != value for row in trial.rows):
                found.append(key)
    return [key for key in experiment.trials[0].rows[0]["config"] if key in found]


def _value(row, key):
    return row["config"][key] if key in row["config"] else row[key]


def _lives(trial):
    """Return the trial's results between one exploit and the next, with the exploit before each (None at first)."""
    exploits = [decision for decision in trial.decisions if decision["kind"] == "exploit"]
    lives, begun = [], None
    edges = [decision["time"] for decision in exploits] + [math.inf]
    start = -math.inf
    for end, exploit in zip(edges, [*exploits, None], strict=True):
        rows = [row for row in trial.all_rows if start < row["clock"] <= end]
        lives.append((begun, rows))
        begun, start = exploit, end
    return lives


def _pieces(trial):
    return [rows for _, rows in _lives(trial) if rows]


def _source(experiment, exploit):
    """Return the trial, the number of its life and the result that an exploit copied."""
    reason = exploit["reason"]
    source = next(trial for trial in experiment.trials if trial.trial_id == reason["source_trial"])
    found = None
    for number, (_, rows) in enumerate(_lives(source)):
        for row in rows:
            if row["training_iteration"] == reason["from_iteration"] and row["clock"] <= exploit["time"]:
                found = source, number, row
    return found


def _exploits(experiment):
    found = []
    for trial in experiment.trials:
        for exploit, rows in _lives(trial):
            source = _source(experiment, exploit) if exploit and "from_iteration" in exploit["reason"] else None
            if source and rows:
                found.append({"row": rows[0], "source": source[2]})
    return found


def _ancestors(experiment):
    """Return the results that led to the best one, oldest first."""
    trial, number = experiment.best(), None
    line, before = [], math.inf
    while True:
        lives = _lives(trial)
        number = len(lives) - 1 if number is None else number
        begun, rows = lives[number]
        line = [row for row in rows if row["training_iteration"] <= before] + line
        if begun is not None and begun["reason"].get("rule") == "replay":
            number, before = number - 1, begun["iteration"]
            continue
        if begun is None or "from_iteration" not in begun["reason"]:
            return line
        found = _source(experiment, begun)
        if found is None:
            return line
        trial, number, row = found
        before = row["training_iteration"]


# Samples.


def samples(experiment):
    """Return the samples in the space, by value and order, beside the best value so far."""
    figure, (left, right) = plt.subplots(1, 2, figsize=SIZE, layout="constrained", width_ratios=[1.15, 1])
    done = [trial for trial in experiment.trials if trial.rows]
    first, second = _varied(done)
    values = [trial.rows[-1][experiment.metric] for trial in done]
    best = done.index(experiment.best())
    positive = _is_positive(values)
    norm = (mpl.colors.LogNorm if positive else mpl.colors.Normalize)(min(values), max(values))
    xs, ys = ([_place(trial, key) for trial in done] for key in (first, second))
    points = left.scatter(xs, ys, c=values, s=105, cmap="cividis_r", norm=norm, linewidths=0)
    for x, y, value, trial in zip(xs, ys, values, done, strict=True):
        left.annotate(str(trial.number + 1), (x, y), ha="center", va="center", fontsize=6.5,
                      color="white" if norm(value) > 0.55 else "black")  # fmt: skip
    left.scatter(xs[best], ys[best], s=170, facecolors="none", edgecolors=ORANGE, linewidths=2)
    for axis, places, scale in ((left.xaxis, xs, left.set_xscale), (left.yaxis, ys, left.set_yscale)):
        if _is_positive(places):
            scale("log")
            axis.set_minor_formatter(NullFormatter())
    left.set(
        xlabel=first or "sample",
        ylabel=second or "sample",
        title=f"samples by {experiment.metric}, numbered in their order",
    )
    bar = figure.colorbar(points, ax=left, pad=0.02, aspect=30)
    ticks = [tick for tick in (2, 3, 5, 10, 20, 50) if min(values) <= tick <= max(values)]
    if experiment.metric == ERROR:
        bar.ax.set_title("%", fontsize=8)
    if len(ticks) > 1:
        _ticks(bar.ax.yaxis, ticks)
    bar.outline.set_visible(False)
    better = min if experiment.mode == "min" else max
    so_far = [better(values[: place + 1]) for place in range(len(values))]
    order = range(1, len(values) + 1)
    right.plot(order, values, "o", ms=4, color=SKY, label="sample")
    right.step(order, so_far, where="post", color="black", lw=1.5, label="best so far")
    right.plot(best + 1, values[best], "o", ms=10, mfc="none", mec=ORANGE, mew=2, label="best")
    _log(right.yaxis, [1, 2, 3, 5, 10, 20, 30, 50, 100])
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="sample", ylabel=_label(experiment.metric), title="in their order")
    figure.legend(loc="outside upper center", ncols=3, handlelength=1.5)
    return figure


def _place(trial, key):
    """Return where a sample stands on the axis of a parameter: its value, or the words for it."""
    value = trial.rows[0]["config"][key] if key else trial.number + 1
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _varied(trials):
    """Return the first two parameters that differ between trials; "" stands for the order when there is none."""
    configs = [trial.rows[0]["config"] for trial in trials]
    varied = [key for key in configs[0] if len({str(config.get(key)) for config in configs}) > 1]
    return [*varied, "", ""][:2]


def _is_positive(values):
    return all(isinstance(value, (int, float)) and value > 0 for value in values)


def _label(metric):
    """Return how an axis of the metric is called; of the examples it is a percentage."""
    return f"{metric} (%)" if metric == ERROR else metric


# Resources.


def resources(experiment):
    """Return the learning curves beside the CPUs that each trial had."""
    figure, (left, right) = plt.subplots(1, 2, figsize=SIZE, layout="constrained", width_ratios=[1.15, 1])
    _curves(left, experiment)
    start = min(_clocks(experiment))
    steps = []
    for trial in experiment.trials:
        changes = [decision for decision in trial.decisions if decision["kind"] == "resources" or
                   decision["reason"].get("source") == "resources"]  # fmt: skip
        given = [(trial.rows[0]["clock"] - start, 1.0)]
        given += [(decision["time"] - start, _cpus(decision["reason"])) for decision in changes]
        given.append((trial.rows[-1]["clock"] - start, 0.0))
        steps.append(given)
    times = sorted({time for given in steps for time, _ in given})
    heights = [[_at(given, time) for time in times] for given in steps]
    palette = [BLUE, SKY, GREEN, "#F0E442", "#E69F00", ORANGE, PURPLE, GREY]
    colours = [palette[place % len(palette)] for place in range(len(steps))]
    right.stackplot(times, heights, step="post", colors=colours, edgecolor="white", lw=0.6)
    right.set(xlabel="seconds since the first result", ylabel="CPUs", title="who had them (one colour per trial)")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _cpus(reason):
    return float(reason.get("resources", {}).get("cpu", 1))


def _at(given, time):
    amount = 0.0
    for when, cpus in given:
        if when <= time:
            amount = cpus
    return amount


# Axes.


def _log(axis, ticks):
    if axis.axes.dataLim.y0 <= 0:
        return
    axis.axes.set_yscale("log")
    low, high = axis.axes.get_ylim()
    shown = [tick for tick in ticks if low <= tick <= high]
    if len(shown) > 1:
        _ticks(axis, shown)


def _ticks(axis, ticks):
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
