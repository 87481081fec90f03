"""Commands for images and files: prepare, verify."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.commands.options import JsonOption, RecipeOption, RunOption, SetOption, alone, opened, print_json, reporter

if TYPE_CHECKING:
    from data_prep.prepare import Means

SourceArgument = Annotated[
    str | None,
    typer.Argument(metavar="SOURCE", help="digits, tfds:NAME, folder:DIR or arrays:FILE.npz; default: what the recipe names."),
]
SizeOption = Annotated[int | None, typer.Option(help="Height and width of the images, in pixels.")]
OutOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for the records; default: one in $IMP_DATA, else in data/.")
]
ClassesOption = Annotated[int | None, typer.Option(help="Keep only this many classes, the first ones.")]
ChannelsOption = Annotated[int | None, typer.Option(metavar="3|1", help="1: grey images; default: 3.")]
ValOption = Annotated[
    float | None, typer.Option(metavar="FRACTION", help="Share of the training images to hold out for validation.")
]
TestOption = Annotated[
    float | None, typer.Option(metavar="FRACTION", help="Share of all images to test on, if the source has no test images.")
]
SplitSeedOption = Annotated[int | None, typer.Option(help="Seed that chooses the images held out; default: 0.")]
WorkersOption = Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")]
EngineOption = Annotated[str, typer.Option(help="Engine: local or spark.")]
MasterOption = Annotated[str, typer.Option(metavar="URL", help="Spark master.")]
MaxBadOption = Annotated[
    float, typer.Option(min=0, max=1, metavar="FRACTION", help="Share of the images that may be undecodable.")
]
DataDirOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where TensorFlow Datasets keeps its files; default: $TFDS_DATA_DIR.")
]
AgainOption = Annotated[Path | None, typer.Option("--records", metavar="DIR", help="Restore what this prepared set has lost.")]


def prepare(
    source: SourceArgument = None,
    size: SizeOption = None,
    out: OutOption = None,
    classes: ClassesOption = None,
    channels: ChannelsOption = None,
    val: ValOption = None,
    test: TestOption = None,
    split_seed: SplitSeedOption = None,
    workers: WorkersOption = 0,
    engine: EngineOption = "local",
    master: MasterOption = "local[*]",
    max_bad: MaxBadOption = 0.001,
    data_dir: DataDirOption = None,
    records: AgainOption = None,
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
) -> None:
    """Turn images into TFRecord shards, once per data set and size."""
    from data_prep.errors import InputError
    from data_prep.prepare import Means, settings_of
    from data_prep.records import read_manifest
    from lottery.stages import prepare as stage

    alone()
    if engine not in ("local", "spark"):
        raise InputError(f"--engine {engine}: write local or spark")
    means = Means("spark" if engine == "spark" else "local", workers, master, max_bad, data_dir)
    kinds = {"source": source, "size": size, "classes": classes, "channels": channels}
    given = kinds | {"validation": val, "test": test, "split_seed": split_seed, "path": str(out.resolve()) if out else None}
    values = {key: value for key, value in given.items() if value is not None}
    names_a_run = bool(run or recipe or set_)
    if records:
        if values or names_a_run:
            raise InputError("--records restores a set as its manifest says: leave out the other options")
        stage.prepare_set(settings_of(read_manifest(records)), records, reporter(), means)
    elif source is None:
        overrides = [*(f"data.{key}={value}" for key, value in values.items()), *(set_ or [])]
        stage.prepare(opened(run, recipe, overrides), reporter(), means)
    elif names_a_run:
        raise InputError("SOURCE cannot be combined with --run, --recipe and --set: leave it out to prepare what they name")
    else:
        _from_source(source, out, values, means)


def _from_source(source: str, out: Path | None, values: dict[str, Any], means: "Means") -> None:
    from data_prep.errors import InputError
    from data_prep.sources import check_name
    from lottery.experiment.reading import resolve
    from lottery.rundir.run import default_records
    from lottery.stages.prepare import prepare_set

    check_name(source)
    if "size" not in values:
        raise InputError(f"--size is missing: write `imp prepare {source} --size 64` for images of 64x64")
    settings = resolve({"data": values}, (), "prepare").records()
    folder = out or default_records(settings)
    prepare_set(settings, folder, reporter(), means)
    print(f"train on them with: imp run --records {shlex.quote(str(folder))}")


def verify(
    path: Annotated[Path, typer.Argument(help="A folder of records, or a run directory.")], as_json: JsonOption = False
) -> None:
    """Check every file of a record directory or a run directory, and name each damaged one."""
    from lottery.results.verify import verify

    checks = verify(path, reporter())
    damaged = [check for check in checks if check.problem]
    if as_json:
        print_json([dataclasses.asdict(check) for check in checks])
    else:
        for check in damaged:
            print(check.problem)
        print(f"{path}: {len(checks)} files checked, {len(damaged)} damaged")
    if damaged:
        raise typer.Exit(1)
