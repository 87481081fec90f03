"""`imp bench scaling`: an epoch by 1, 2 .. n devices in batches of several sizes."""

from typing import Annotated

import typer

from lottery.base.progress import count_of
from lottery.bench import learning, timing
from lottery.bench.harness import LEARNABLE, Bench, RecordsOption, machine, measurement, size_of, with_training
from lottery.bench.sheet import Column, duration, lines

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
                    own = with_training(settled, devices=count, batch=count * each, epochs=1 + bench.repeats)
                    (epochs,) = learning.run(bench, name, own, folder, alone=True, split="validation")
                    row: dict[str, float] = {"devices": count, "each": each}
                    row |= timing.spread("epoch_s", [epoch["seconds"] for epoch in epochs[1:]])
                    speed, accuracy = epochs[-1]["images"] / row["epoch_s"], epochs[-1]["accuracy"] / 100
                    alone = speed if count == 1 else alone
                    speed_up = alone and speed / alone
                    compared = {"speed_up": speed_up, "efficiency": speed_up and speed_up / count}
                    bench.rows.append({**row, "images_per_s": speed, "accuracy": accuracy, **compared})
    metric = learning.metric(recipe)
    notes = [
        f"medians of {bench.repeats} epochs after one to warm up; the validation {metric} is the one after them",
        "an epoch leaves out images that do not fill a last batch, so speed-up is that of images a second",
    ]
    if not gpus:
        notes.insert(0, "logical devices that share this machine's cores: a test of the code, not of a speed")
    title = f"Scaling over devices: {recipe.model.name}, {size_of(recipe)}"
    figure = lines(bench.rows, "devices", "speed_up", "each", ("devices", "speed-up"), "batch of each")
    bench.sheet(title, COLUMNS, figure, *notes)
