"""Commands for records and files: prepare, verify."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from lottery.commands.options import JsonOption, RunOptions, print_json, reporter


def prepare(
    run: RunOptions,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="digits, tfds:NAME, folder:DIR or arrays:FILE.npz; of texts: docstrings, deb-descriptions or "
            "candidates:FILE.jsonl; default: what the recipe names.",
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Height and width of the images, in pixels.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the records; default: one in $IMP_DATA, else in data/.")
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Train on only this many, of each class its share.")] = None,
    classes: Annotated[int | None, typer.Option(help="Keep only this many classes, the first ones.")] = None,
    channels: Annotated[int | None, typer.Option(metavar="3|1", help="1: grey images; default: 3.")] = None,
    val: Annotated[
        float | None, typer.Option(metavar="FRACTION", help="Share of the training set to hold out for validation.")
    ] = None,
    test: Annotated[
        float | None, typer.Option(metavar="FRACTION", help="Share of all examples to test on, if the source has none.")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="Seed that chooses what is held out; default: 0.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0,
    engine: Annotated[Literal["local", "spark"], typer.Option(help="Engine.")] = "local",
    master: Annotated[str, typer.Option(metavar="URL", help="Spark master.")] = "local[*]",
    max_bad: Annotated[
        float, typer.Option(min=0, max=1, metavar="FRACTION", help="Share of the source that may be broken.")
    ] = 0.001,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where TensorFlow Datasets keeps its files; default: $TFDS_DATA_DIR.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option("--records", metavar="DIR", help="Restore what this prepared set has lost.")
    ] = None,
) -> None:
    """Turn images or texts into TFRecord shards, once per data set and size."""
    from data_prep.prepare import Means, settings_of
    from data_prep.records import read_manifest
    from data_prep.sources import check_name, is_of_texts
    from lottery.base.errors import InputError, printable
    from lottery.experiment.reading import resolve
    from lottery.rundir.run import default_records
    from lottery.stages import prepare as stage

    means = Means(engine, workers, master, max_bad, data_dir, compares_source=True)
    kinds = {"source": source, "size": size, "examples": examples, "classes": classes, "channels": channels}
    given = kinds | {"validation": val, "test": test, "split_seed": split_seed, "path": str(out.resolve()) if out else None}
    values = {key: value for key, value in given.items() if value is not None}
    names_a_run = bool(run.run or run.recipe)
    if records:
        if values or names_a_run or run.set_:
            raise InputError("--records restores a set as its manifest says: leave out the other options")
        stage.prepare_set(settings_of(read_manifest(records)), records, reporter(), means)
    elif source is None:
        overrides = [*(f"data.{key}={value}" for key, value in values.items()), *(run.set_ or [])]
        stage.prepare(dataclasses.replace(run, set_=overrides).open(), reporter(), means)
    elif names_a_run or (run.set_ and not is_of_texts(source)):
        raise InputError("SOURCE cannot be combined with --run, --recipe and --set: leave it out to prepare what they name")
    else:
        check_name(source)
        if size is None and not is_of_texts(source):
            raise InputError(f"--size is missing: write `imp prepare {source} --size 64` for images of 64x64")
        settings = resolve({"data": values}, run.set_ or (), "prepare").records()
        folder = out or default_records(settings)
        stage.prepare_set(settings, folder, reporter(), means)
        named = "RECIPE " if is_of_texts(source) else ""  # without one, images are expected
        print(printable(f"train on them with: imp run {named}--records {shlex.quote(str(folder))}"))


def verify(
    path: Annotated[Path, typer.Argument(help="A folder of records, or a run directory.")], as_json: JsonOption = False
) -> None:
    """Check every file of a record directory or a run directory, and name each damaged one."""
    from lottery.base.errors import printable
    from lottery.results.verify import verify

    checks = verify(path, reporter())
    damaged = [problem for problem in checks.values() if problem]
    if as_json:
        print_json([{"path": file, "problem": problem} for file, problem in checks.items()])
    else:
        for problem in damaged:
            print(printable(problem))
        print(printable(f"{path}: {len(checks)} files checked, {len(damaged)} damaged"))
    if damaged:
        raise typer.Exit(1)
