"""The figures: accuracy against density, a line per method and rewind point, the dense network as a band; and the same where
the validation loss was least, with that step."""

import io
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from lottery.jobs import FROM_SCRATCH
from lottery.results.grouping import Group

_MARKERS = {"ticket": "o", "reinit": "x", "shuffle": "^", "random": "s", "extended": "D"}


def accuracy(groups: Sequence[Group]) -> bytes:
    """A PNG of the mean final validation accuracy of every group that has one; bars are one standard deviation over
    replicates."""
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, 10, groups, lambda group: group.validation_accuracy, lambda group: group.spread or 0)
    axes.set_ylabel("final validation accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return _png(figure)


def early_stop(groups: Sequence[Group]) -> bytes:
    """A PNG of the mean test accuracy at the step of least validation loss, and of that step (Frankle & Carbin 2019, figure
    4)."""
    figure = Figure(figsize=(10, 4.5), dpi=150, layout="constrained")
    step, reached = figure.subplots(1, 2)
    _draw(step, 6, groups, lambda group: group.early_step, legend=False)
    step.set_ylabel("step of least validation loss")
    _draw(reached, 6, groups, lambda group: group.early_test_accuracy)
    reached.set_ylabel("test accuracy there")
    reached.yaxis.set_major_formatter(PercentFormatter(1.0))
    return _png(figure)


def _draw(
    axes: Axes,
    room: int,
    groups: Sequence[Group],
    value: Callable[[Group], float],
    spread: Callable[[Group], float] = lambda group: 0,
    legend: bool = True,
) -> None:
    """A line per (method, rewind point), markers for controls; `value` of each group that has one, with bars of `spread`.
    There is `room` for so many densities below the axis."""
    groups = [group for group in groups if group.count]
    for dense in (group for group in groups if group.variant == "dense"):
        axes.axhspan(value(dense) - spread(dense), value(dense) + spread(dense), color="0.6", alpha=0.3, lw=0)
        axes.axhline(value(dense), color="0.4", lw=1, label="dense network")
    lines = dict.fromkeys((group.variant, group.method, group.rewind) for group in groups if group.variant != "dense")
    series = dict.fromkeys((method, rewind) for _, method, rewind in lines)
    colours = {key: f"C{index}" for index, key in enumerate(series)}
    for variant, method, rewind in lines:
        members = [group for group in groups if (group.variant, group.method, group.rewind) == (variant, method, rewind)]
        bars = [spread(group) for group in members]
        axes.errorbar(
            [group.density for group in members],
            [value(group) for group in members],
            yerr=bars if any(bars) else None,
            capsize=3,
            marker=_MARKERS[variant],
            linestyle="-" if variant == "ticket" else "none",
            color="0.2" if variant in FROM_SCRATCH and len(series) == 1 else colours[method, rewind],
            label=_name(variant, method, rewind),
        )
    _label(axes, sorted({group.density for group in groups if group.variant not in ("dense", "extended")}), room)
    if legend:
        axes.legend(fontsize="small")


def _name(variant: str, method: str, rewind: str) -> str:
    chain = "" if method == "oneshot" else f"{method}: "
    return (
        chain
        + {
            "ticket": f"ticket rewound to {rewind}",
            "reinit": "reinit: same mask, fresh weights",
            "random": "random: shuffled mask, fresh weights",
            "shuffle": f"shuffle: shuffled mask, rewound to {rewind}",
            "extended": "dense, trained as long",
        }[variant]
    )


def _label(axes: Axes, densities: Sequence[float], room: int) -> None:
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.xaxis.set_major_locator(FixedLocator(_apart(densities, room)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.3g}%"))
    axes.set_xlabel("density: share of prunable weights kept (sparser to the right)")
    axes.grid(alpha=0.3)


def _apart(densities: Sequence[float], room: int) -> list[float]:
    """The densities to label, from the sparsest up: as far apart, on a logarithmic axis, as `room` for so many labels asks."""
    chosen: list[float] = []
    for density in sorted(densities):
        if not chosen or density > chosen[-1] * (max(densities) / min(densities)) ** (1 / room):
            chosen.append(density)
    return chosen


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
