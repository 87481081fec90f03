"""The figure: validation accuracy against density, a line per rewind point, the dense network as a band."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from lottery.grids import FROM_SCRATCH
from lottery.results import Group

_MARKERS = {"ticket": "o", "reinit": "x", "shuffle": "^", "random": "s"}


def accuracy(groups: Sequence[Group]) -> bytes:
    """A PNG of the mean final validation accuracy of every group that has one; bars are one standard deviation over
    replicates."""
    groups = [group for group in groups if group.count]
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _draw_dense(axes, groups)
    lines = dict.fromkeys((group.variant, group.rewind) for group in groups if group.variant != "dense")
    colours = {rewind: f"C{index}" for index, rewind in enumerate(dict.fromkeys(rewind for _, rewind in lines))}
    for variant, rewind in lines:
        members = [group for group in groups if (group.variant, group.rewind) == (variant, rewind)]
        axes.errorbar(
            [group.density for group in members],
            [group.validation_accuracy for group in members],
            yerr=[group.spread or 0 for group in members],
            capsize=3,
            marker=_MARKERS[variant],
            linestyle="-" if variant == "ticket" else "none",
            color="0.2" if variant in FROM_SCRATCH else colours[rewind],
            label=f"ticket rewound to {rewind}" if variant == "ticket" else _control_name(variant, rewind),
        )
    _label(axes, sorted({group.density for group in groups if group.variant != "dense"}))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _control_name(variant: str, rewind: str) -> str:
    return {
        "reinit": "reinit: same mask, fresh weights",
        "random": "random: shuffled mask, fresh weights",
        "shuffle": f"shuffle: shuffled mask, rewound to {rewind}",
    }[variant]


def _draw_dense(axes: Axes, groups: Sequence[Group]) -> None:
    for dense in (group for group in groups if group.variant == "dense"):
        spread = dense.spread or 0
        axes.axhspan(dense.validation_accuracy - spread, dense.validation_accuracy + spread, color="0.6", alpha=0.3, lw=0)
        axes.axhline(dense.validation_accuracy, color="0.4", lw=1, label="dense network")


def _label(axes: Axes, densities: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.xaxis.set_major_locator(FixedLocator(_apart(densities)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.3g}%"))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("density: share of prunable weights kept (sparser to the right)")
    axes.set_ylabel("final validation accuracy")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _apart(densities: Sequence[float]) -> list[float]:
    """The densities to label: from the sparsest up, each a quarter above the last or more, so that labels stay apart."""
    chosen: list[float] = []
    for density in sorted(densities):
        if not chosen or density > 1.25 * chosen[-1]:
            chosen.append(density)
    return chosen
