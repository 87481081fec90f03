"""The command line. Each command imports its stage when it is called, so that `imp --help` answers at once."""

import dataclasses
import json
import math
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.bench.commands import app as bench
from lottery.preemption import EXIT_CODE
from lottery.tables import print_table

if TYPE_CHECKING:
    from lottery.progress import Reporter
    from lottery.results import Group
    from lottery.run import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find lottery tickets: train, prune by magnitude, rewind, retrain, compare.",
)

INTERRUPTED = 128 + signal.SIGINT

app.add_typer(bench, name="bench")

RunOption = Annotated[Path | None, typer.Option("--run", metavar="DIR", help="Run directory; else $IMP_RUN, else runs/latest.")]
RecipeOption = Annotated[Path | None, typer.Option("--recipe", metavar="TOML", help="Recipe; else the run's own, else digits.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe value; repeatable.")]
RecordsOption = Annotated[
    Path | None, typer.Option("--records", metavar="DIR", help="Prepared set to train on; else the one the recipe names.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
QuantilesOption = Annotated[
    str | None, typer.Option("--quantiles", metavar="GRID", help="Such as 90, 60..99 or 60..80:5,85..99.")
]
RanksOption = Annotated[int, typer.Option("--ranks", min=1, help="Start this many MPI ranks on this host.")]


@app.command()
def prepare(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE", help="digits, tfds:NAME, folder:DIR or arrays:FILE.npz; without it, what the recipe names."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Height and width of the images, in pixels.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to; else in $IMP_DATA, else in data/.")] = None,
    classes: Annotated[int | None, typer.Option(help="Only the first so many classes.")] = None,
    val: Annotated[float | None, typer.Option(metavar="FRACTION", help="Of the training images, held out.")] = None,
    test: Annotated[
        float | None, typer.Option(metavar="FRACTION", help="Of all images, where the source has none to test on.")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="Which of them; 0 unless given.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    engine: Annotated[str, typer.Option(help="local or spark.")] = "local",
    master: Annotated[str, typer.Option(metavar="URL", help="Spark master; else local[*].")] = "local[*]",
    max_bad: Annotated[
        float, typer.Option(min=0, max=1, metavar="FRACTION", help="Of the images, so many may be undecodable.")
    ] = 0.001,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where TensorFlow Datasets keeps its sets; else $TFDS_DATA_DIR.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option("--records", metavar="DIR", help="Make again what this prepared set has lost.")
    ] = None,
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
) -> None:
    """Images to TFRecord shards, once per data set and size."""
    from data_prep.errors import InputError
    from data_prep.prepare import Means, settings_of
    from data_prep.records import read_manifest
    from data_prep.sources import check_name
    from lottery.prepare import prepare, prepare_set

    _alone()
    if engine not in ("local", "spark"):
        raise InputError(f"--engine {engine}: write local or spark")
    means = Means("spark" if engine == "spark" else "local", workers, master, max_bad, data_dir)
    given = {"source": source, "size": size, "classes": classes, "validation": val, "test": test, "split_seed": split_seed}
    values = {key: value for key, value in given.items() if value is not None} | ({"path": str(out.resolve())} if out else {})
    if records:
        if values or run or recipe or set_:
            raise InputError("--records is made again as its manifest says: leave out what else says how")
        prepare_set(settings_of(read_manifest(records)), records, _reporter(), means)
        return
    if source is None:
        opened = _open(run, recipe, [*(f"data.{key}={value}" for key, value in values.items()), *(set_ or [])])
        prepare(opened, _reporter(), means)
        return
    if run or recipe or set_:
        raise InputError("SOURCE is prepared on its own: leave it out to prepare what --run, --recipe and --set say")
    check_name(source)
    if size is None:
        raise InputError(f"--size is missing: write `imp prepare {source} --size 64` for images of 64x64")
    from lottery.recipe import resolve
    from lottery.run import default_records

    settings = resolve({"data": values}, (), "prepare").records()
    folder = out or default_records(settings)
    prepare_set(settings, folder, _reporter(), means)
    print(f"train on them with: imp run --records {shlex.quote(str(folder))}")


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A folder of records, or a run directory.")], as_json: JsonOption = False
) -> None:
    """Check every file of a record directory or a run directory, and name each damaged one."""
    from lottery.verify import verify

    checks = verify(path, _reporter())
    damaged = [check for check in checks if check.problem]
    if as_json:
        _print_json([dataclasses.asdict(check) for check in checks])
    else:
        for check in damaged:
            print(check.problem)
        print(f"{path}: {len(checks)} files checked, {len(damaged)} damaged")
    if damaged:
        raise typer.Exit(1)


@app.command()
def train(
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a trace of some steps there, for TensorBoard and Perfetto.")
    ] = None,
) -> None:
    """Train the dense network, saving it at every rewind point."""
    from lottery.train import train

    _alone()
    train(_open(run, recipe, set_, records=records), _reporter(), profile)


@app.command()
def thresholds(
    quantiles: QuantilesOption = None,
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn quantiles of the dense network's magnitudes into masks."""
    from lottery.thresholds import thresholds

    _alone()
    overrides = [*(set_ or []), *([f"thresholds.quantiles={quantiles}"] if quantiles is not None else [])]
    tables = thresholds(_open(run, recipe, overrides), _reporter())
    if as_json:
        _print_json(tables)
        return
    for number, table in enumerate(tables, 1):
        _print_thresholds(number, table)


@app.command()
def retrain(
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    quantiles: QuantilesOption = None,
    rewind: Annotated[str | None, typer.Option(metavar="POINTS", help="Such as 0,10it,1ep; else the recipe's.")] = None,
    ranks: RanksOption = 1,
) -> None:
    """Train every (mask, rewind point) pair and its controls; fans out under mpirun."""
    from lottery.fanout import launched_rank
    from lottery.retrain import retrain

    opened = _open(run, recipe, set_)
    if ranks > 1 and launched_rank() is None:
        _retrain_on(ranks, opened, quantiles, rewind)
        return
    summary = retrain(opened, _reporter(), quantiles, rewind)
    if summary and summary.unfinished:
        for line in summary.lines():
            print(f"not finished: {line}", file=sys.stderr)
        raise typer.Exit(2 if summary.only_busy else 1)


@app.command()
def report(run: RunOption = None, as_json: JsonOption = False) -> None:
    """Accuracy against density, with controls and verdicts: HTML, Markdown, CSV and a figure."""
    from lottery.report import HEADINGS, report

    _alone()
    opened = _open(run, must_exist=True)
    made = report(opened)
    if as_json:
        _print_json({"headline": made.headline, "networks": made.rows, "groups": [_finite(group) for group in made.groups]})
        return
    print_table(opened.recipe.name, HEADINGS, made.table)
    for sentence in made.headline:
        print(sentence)
    print(f"Open {opened.report / 'index.html'}")


@app.command()
def status(run: RunOption = None, as_json: JsonOption = False) -> None:
    """What is done, under way, failed and missing, and the time left."""
    from lottery.progress import duration
    from lottery.status import status

    opened = _open(run, must_exist=True)
    lines = status(opened)
    if as_json:
        _print_json([dataclasses.asdict(line) for line in lines])
        return
    print_table(
        str(opened.folder),
        ("stage", "done", "under way", "failed", "missing", "time left"),
        [
            (
                line.stage,
                *map(str, (line.done, line.under_way, line.failed, line.missing)),
                "" if line.seconds_left is None else duration(line.seconds_left),
            )
            for line in lines
        ],
    )
    for line in lines:
        for detail in line.details:
            print(detail)


@app.command(name="run")
def run_all(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe, such as pipelines/digits.toml; else the run's own.")] = None,
    run: RunOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    ranks: RanksOption = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the networks to train and their cost in epochs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """All stages: prepare, train, thresholds, retrain, report. What is done already is not done again."""
    opened = _open(run, recipe, set_, records=records)
    if dry_run:
        _dry_run(opened, as_json)
        return
    _alone()
    from lottery.prepare import prepare as prepare_stage
    from lottery.thresholds import thresholds as thresholds_stage
    from lottery.train import train as train_stage

    reporter = _reporter()
    prepare_stage(opened, reporter)
    train_stage(opened, reporter)
    thresholds_stage(opened, reporter)
    failed = False
    try:
        retrain(run=opened.folder, ranks=ranks)
    except typer.Exit as stopped:
        if stopped.exit_code == EXIT_CODE:
            raise
        failed = stopped.exit_code != 0
    report(run=opened.folder, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line: exit code 2 and one line for what the user can mend, 1 for what failed, 130 for Ctrl-C, 75 for
    SIGTERM and SIGUSR1."""
    from data_prep.errors import Failed, one_line
    from lottery import preemption
    from lottery.fanout import launched_rank

    try:
        with preemption.heeded():
            code = app(standalone_mode=False)
        if code == INTERRUPTED:  # which is what Typer makes of Ctrl-C
            print("stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(code)
    except preemption.Preempted as error:
        preemption.ignore()
        print(f"{error}; the same command goes on from here", file=sys.stderr)
        sys.exit(preemption.EXIT_CODE)
    except Exception as error:
        line = _usage(error) or one_line(error)
        if line is None:
            traceback.print_exc()
            sys.exit(1)
        rank = launched_rank()
        print(f"imp: {f'rank {rank}: ' if rank else ''}{line}", file=sys.stderr)
        sys.exit(1 if isinstance(error, Failed) else 2)


def _usage(error: Exception) -> str | None:
    """The line for a command line that could not be parsed, None for any other error."""
    context = getattr(error, "ctx", None)
    if not hasattr(error, "format_message"):
        return None
    message = error.format_message().replace("\n", " ")
    if not message:  # no command at all: the help has been printed
        sys.exit(2)
    return f"{message} (see `{context.command_path if context else 'imp'} --help`)"


def _alone() -> None:
    from lottery.fanout import refuse_ranks

    refuse_ranks()


def _open(
    run: Path | None,
    recipe: Path | None = None,
    overrides: Sequence[str] | None = None,
    must_exist: bool = False,
    records: Path | None = None,
) -> "Run":
    from lottery.run import open_run

    return open_run(run, recipe, overrides or (), must_exist, records)


def _reporter() -> "Reporter":
    from lottery.fanout import launched_rank
    from lottery.progress import Reporter

    rank = launched_rank()
    return Reporter(prefix=f"rank {rank}: " if rank else "")


def _retrain_on(ranks: int, opened: "Run", quantiles: str | None, rewind: str | None) -> None:
    from lottery.fanout import command, launch
    from lottery.retrain import checked_jobs

    checked_jobs(opened, quantiles, rewind)  # here, so that bad input is one line without mpirun's own
    opened.adopt()
    grids = (("--quantiles", quantiles), ("--rewind", rewind))
    options = [part for option, grid in grids if grid is not None for part in (option, grid)]
    code = launch(*command(ranks, ["retrain", "--run", str(opened.folder), *options]))
    if code:
        raise typer.Exit(code)


def _dry_run(opened: "Run", as_json: bool) -> None:
    from lottery.plan import dry_run

    lines = dry_run(opened.recipe, opened.known_training_images())
    if as_json:
        _print_json([dataclasses.asdict(line) for line in lines])
        return
    print_table(opened.recipe.name, ("network", "epochs"), [(line.title, f"{line.epochs:g}") for line in lines])
    networks = [line for line in lines if line.rewound]
    print(f"{len(networks)} networks under masks, {sum(line.epochs for line in lines):g} epochs in all")


def _print_thresholds(number: int, table: dict[str, Any]) -> None:
    title = (
        f"replicate-{number}: |w| of {table['count']} weights ({table['scope']}): "
        f"min {table['min']:.3g}, mean {table['mean']:.4g}, max {table['max']:.4g}"
    )
    print_table(
        title,
        ("quantile", "threshold", "pruned", "remaining", "density", "of trainable", "of total"),
        [
            (
                f"{row['quantile']:g}",
                "per layer" if row["threshold"] is None else f"{row['threshold']:.4g}",
                str(row["pruned"]),
                str(row["remaining"]),
                *(f"{row['density'][scope]:.2%}" for scope in ("prunable", "trainable", "total")),
            )
            for row in table["quantiles"]
        ],
    )


def _finite(group: "Group") -> dict[str, Any]:
    """A group for JSON, which has neither infinities nor NaN."""
    fields = dataclasses.asdict(group)
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fields.items()}


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))
