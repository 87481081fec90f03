"""What the masks of a campaign take, compared with sorting its magnitudes alone: `python benchmarks/thresholds.py`."""

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import turns
import typer
from harness import MOBILENET, Bench, Network, Recipe, duration, measurement

from lottery import cli
from lottery.base.progress import Reporter, count_of
from lottery.bench import timing
from lottery.bench.sheet import Column, bars

if TYPE_CHECKING:
    from lottery.experiment.grids import Grid, Quantile
    from lottery.rundir.run import Run

WIDE: Network = ("MobileNetV2 (alpha 1), all ranked", (*MOBILENET[1], "model.alpha=1", "pruning.exclude=[]"))
CLASSES = 1000
BATCH = 100
IMAGES = 1000  # which criteria that need them see
COLUMNS = (
    Column("name", ""),
    Column("weights", "weights"),
    Column("masks", "masks"),
    *duration("seconds", "s", ",.2f"),
    Column("sort_seconds", "sorting alone, s", ",.2f"),
    Column("bytes_per_weight", "bytes a weight", ",.1f"),
    Column("written_mb", "MB written", ",.1f"),
)
SHORT = (  # the run whose masks are made: a single step of training, on a single batch
    *("replicates=1", "train.steps=1", f"train.batch={BATCH}", "train.schedule=constant", "train.warmup=0"),
    *("train.snapshots=0", "families.oneshot.rewind=0"),
)


@measurement(repeats=7, network=WIDE)
def thresholds(
    bench: Bench,
    quantiles: Annotated[str, typer.Option(metavar="GRID", help="A mask for each.")] = "60..99",
    criterion: Annotated[str, typer.Option(metavar="NAME", help="The score of a weight.")] = "magnitude",
) -> None:
    """Seconds and memory of the masks of a whole campaign."""
    from lottery.experiment.grids import parse_quantiles

    grid = parse_quantiles(quantiles)
    recipe = bench.recipe(f"families.oneshot.criterion={criterion}", f"families.oneshot.scored_on={IMAGES}")
    with tempfile.TemporaryDirectory() as place, bench.row(recipe.model.name):
        run = bench.call(_trained, recipe=recipe, folder=Path(place))
        bench.rows.append({"name": recipe.model.name, "masks": len(grid), **_measured(run, grid, bench.repeats)})
    bench.sheet(
        f"The masks of quantiles {quantiles}, by {criterion}",
        COLUMNS,
        bars(bench.rows, "name", "seconds", "seconds", spread=True),
        "from the snapshot on disk to masks and table on disk; bytes a weight: the process's growth, of the weights ranked",
        f"medians of {count_of(bench.repeats, 'run')}",
    )


def _trained(recipe: Recipe, folder: Path) -> "Run":
    """A run whose dense network has been trained for a step, on noise. In a process of its own: the one that measures has no
    TensorFlow, as the stage that it measures has none."""
    from noise import make_noise

    from lottery.experiment.reading import resolve
    from lottery.rundir.run import Run
    from lottery.stages.train import train

    records = folder / "records"
    make_noise(records, IMAGES, recipe.records(), CLASSES)
    run = Run(folder / "run", resolve(recipe.model_dump(), [f"data.path={records}", *SHORT]).with_one_shot())
    train(run, Reporter(quiet=True))
    return run


def _measured(run: "Run", quantiles: "Grid[Quantile]", repeats: int) -> dict[str, Any]:
    """From the snapshot on disk to the masks of `quantiles` and their table on disk; what Python and NumPy take to start is not
    counted. `bytes_per_weight` is by how much the process grew at most, over the weights that are ranked."""
    import numpy as np

    from lottery.experiment.plan import Selection
    from lottery.rundir import store
    from lottery.stages.thresholds import thresholds as cut

    folders = [run.replicate(1).mask_folder(name) for name, family in run.recipe.families.items() if family.quantiles]
    walls, peaks = [], []
    for _ in range(1 + repeats):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        with timing.peak_memory() as peak:
            walls.append(turns.seconds_of(lambda: cut(run, Reporter(quiet=True), Selection(quantiles=quantiles))))
            peaks.append(peak())
    written = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    state = store.load_state(run.replicate(1).snapshot(run.plan().total_steps), optimizer=False)
    ranked = run.recipe.pruning.prunable(state)
    magnitudes = np.concatenate([np.abs(array).ravel() for array in ranked.values()])
    copies = (magnitudes.copy() for _ in range(repeats))
    return {
        "weights": magnitudes.size,
        **timing.spread("seconds", walls[1:]),
        "sort_seconds": statistics.median(turns.seconds_of(copy.sort) for copy in copies),
        "bytes_per_weight": statistics.median(peaks[1:]) / magnitudes.size,
        "written_mb": written / 1e6,
    }


if __name__ == "__main__":
    cli.main(thresholds)
