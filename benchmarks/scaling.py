"""An epoch by 1, 2 .. n devices in batches of several sizes: `python benchmarks/scaling.py`."""

from typing import Annotated, Any

import learning
import typer
from harness import LEARNABLE, Bench, duration, measurement, size_of, with_training
from learning import RecordsOption

from lottery import cli
from lottery.base.progress import count_of
from lottery.bench import timing
from lottery.bench.harness import machine
from lottery.bench.sheet import Column, bars

COLUMNS = (
    Column("devices", "devices"),
    Column("each", "batch of each"),
    *duration("epoch_s", "epoch, s", ",.2f"),
    Column("images_per_s", "images/s"),
    Column("speed_up", "speed-up", ".2f"),
    Column("efficiency", "efficiency", ".0%"),
    Column("accuracy", "validation", ".2%"),
)


@measurement(repeats=5, network=LEARNABLE)
def scaling(
    bench: Bench,
    records: RecordsOption = None,
    devices: Annotated[int, typer.Option(min=0, help="Up to so many; 0: all GPUs, or as many as there are cores.")] = 0,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Of each; repeatable.", show_default="50 .. 250")] = None,
) -> None:
    """An epoch by 1, 2 .. n devices: seconds, speed-up, efficiency, accuracy."""
    recipe, gpus = bench.recipe(), machine()["gpus"]
    batches = batch or ([50] if bench.quick else [50, 100, 150, 200, 250])
    with learning.at_hand(recipe, records, min(batches)) as (settled, folder):
        for each in batches:
            alone = None  # images a second of one device
            for count in range(1, (devices or len(gpus) or timing.cores()) + 1):
                name = f"{count_of(count, 'device')}, batch {each} each"
                with bench.row(name):
                    larger = with_training(settled, devices=count, batch=count * each, epochs=1 + bench.repeats)
                    (epochs,) = learning.run(bench, name, larger, folder, alone=True, split="validation")
                    row: dict[str, Any] = {"name": name, "devices": count, "each": each}
                    row |= timing.spread("epoch_s", [epoch["seconds"] for epoch in epochs[1:]])
                    speed, accuracy = epochs[-1]["images"] / row["epoch_s"], epochs[-1]["accuracy"] / 100
                    alone = speed if count == 1 else alone
                    speed_up = alone and speed / alone
                    compared = {"speed_up": speed_up, "efficiency": speed_up and speed_up / count}
                    bench.rows.append({**row, "images_per_s": speed, "accuracy": accuracy, **compared})
    metric = learning.metric(recipe)
    notes = [
        f"medians of {count_of(bench.repeats, 'epoch')} after one to warm up; the validation {metric} is the one after them",
        "an epoch leaves out images that do not fill a last batch, so speed-up is that of images a second",
    ]
    if not gpus:
        notes.insert(0, "logical devices that share this machine's cores: a test of the code, not of a speed")
    title = f"Scaling over devices: {recipe.model.name}, {size_of(recipe)}"
    figure = bars(bench.rows, "name", "speed_up", "images a second, by those of one device")
    bench.sheet(title, COLUMNS, figure, *notes)


if __name__ == "__main__":
    cli.main(scaling)
