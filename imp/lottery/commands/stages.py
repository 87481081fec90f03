"""Commands that train: train, thresholds, retrain, rounds, and all stages in a row."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.commands.options import (
    STALL_SECONDS,
    JsonOption,
    PartOption,
    PerGpuOption,
    QuantilesOption,
    RanksOption,
    RecipeOption,
    RecordsOption,
    ReplicateOption,
    RewindOption,
    RunOption,
    SetOption,
    StallOption,
    alone,
    opened,
    print_json,
    reporter,
)
from lottery.commands.reading import report
from lottery.grids import MOST
from lottery.preemption import EXIT_CODE
from lottery.tables import percent, print_table

if TYPE_CHECKING:
    from lottery.fanout.ranks import Terms
    from lottery.jobs import AnyJob
    from lottery.run import Run
    from lottery.stages.dispatch import Summary


def train(
    values: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As with --set: so the agents of a W&B sweep give them.")
    ] = None,
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    replicate: ReplicateOption = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a trace of some steps there, for TensorBoard and Perfetto.")
    ] = None,
) -> None:
    """Train the dense network, saving it at every rewind point."""
    from lottery.stages.train import train
    from lottery.tracking import agents_run

    alone()
    for value in values or ():
        if "=" not in value:
            raise typer.BadParameter(f"{value!r} is not KEY=VALUE; a recipe is given with --recipe {value}")
    overrides = [*(set_ or []), *(values or [])]
    train(opened(run or agents_run(), recipe, overrides, records=records, chosen=replicate), reporter(), profile)


def thresholds(
    quantiles: QuantilesOption = None,
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    replicate: ReplicateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn quantiles of the dense network's magnitudes into masks."""
    from lottery.stages.thresholds import thresholds

    alone()
    tables = thresholds(opened(run, recipe, set_, chosen=replicate), reporter(), quantiles)
    if as_json:
        for table in tables:
            print(json.dumps(table))
        return
    for table in tables:
        _print_thresholds(table)


def _print_thresholds(table: dict[str, Any]) -> None:
    from lottery.densities import warning

    title = (
        f"replicate-{table['replicate']}: |w| of {table['count']} weights ({table['scope']}): "
        f"min {table['min']:.3g}, mean {table['mean']:.4g}, max {table['max']:.4g}"
    )
    print_table(
        title,
        ("quantile", "threshold", "pruned", "remaining", "density", "effective", "of trainable", "of total"),
        [
            (
                f"{row['quantile']:g}{' !' if warning(row) else ''}",
                "per layer" if row["threshold"] is None else f"{row['threshold']:.4g}",
                str(row["pruned"]),
                str(row["remaining"]),
                *(percent(row["density"].get(scope)) for scope in ("prunable", "effective", "trainable", "total")),
            )
            for row in table["quantiles"]
        ],
    )
    for row in table["quantiles"]:
        if found := warning(row):
            print(f"! quantile {row['quantile']:g}: {found}")


def retrain(
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    quantiles: QuantilesOption = None,
    rewind: RewindOption = None,
    replicate: ReplicateOption = None,
    until_decided: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST,
            help="Add replicates to undecided pairs, until each has N. As it looks after each, a ticket that is delta worse is "
            "called matching in 9 % of cases for N = 5, 12 % for 7, 15 % for 10, 19 % for 20.",
        ),
    ] = None,
    ranks: RanksOption = 1,
    part: PartOption = "1/1",
    per_gpu: PerGpuOption = None,
    stall: StallOption = STALL_SECONDS,
) -> None:
    """Train every (mask, rewind point) pair and its controls; fans out under mpirun."""
    from lottery.fanout.ranks import Terms
    from lottery.jobs import Part
    from lottery.stages.retrain import checked_jobs, retrain

    target = opened(run, recipe, set_, chosen=replicate)
    terms = Terms(per_gpu=per_gpu, stall=stall, part=Part.parse(part))

    def on_grids(target: "Run", quantiles: str | None, rewind: str | None) -> None:
        options = {"--quantiles": quantiles, "--rewind": rewind}
        _fan_out(
            *("retrain", target, options, ranks, terms),
            partial(checked_jobs, target, quantiles, rewind),
            partial(retrain, target, reporter(), quantiles, rewind, terms),
        )

    if until_decided is None:
        on_grids(target, quantiles, rewind)
        return
    from lottery import locks
    from lottery.stages.decide import until_decided as decide

    alone()
    if replicate or part != "1/1":
        unwanted = "--replicate" if replicate else "--part"
        raise typer.BadParameter(f"--until-decided chooses itself what is trained: leave out {unwanted}")
    failed = False

    def on_more(target: "Run", quantiles: str | None, rewind: str | None) -> None:
        nonlocal failed
        failed |= _fails(partial(on_grids, target, quantiles, rewind))

    with locks.staying(target.folder):
        on_more(target, quantiles, rewind)
        decide(target, until_decided, reporter(), on_more, quantiles, rewind)
    if failed:
        raise typer.Exit(1)


def rounds(
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    levels: Annotated[int | None, typer.Option(min=1, max=100, help="Rounds of pruning; else the recipe's.")] = None,
    replicate: ReplicateOption = None,
    ranks: RanksOption = 1,
    part: PartOption = "1/1",
    per_gpu: PerGpuOption = None,
    stall: StallOption = STALL_SECONDS,
) -> None:
    """Iterative magnitude pruning: prune some of what is left, rewind, train, again; fans out under mpirun."""
    from lottery.fanout.ranks import Terms
    from lottery.jobs import Part
    from lottery.stages.rounds import checked_rounds, headline_controls, rounds

    target = opened(run, recipe, set_, chosen=replicate)
    terms = Terms(per_gpu=per_gpu, stall=stall, part=Part.parse(part))
    planned = target.plan()
    _fan_out(
        *("rounds", target, {"--levels": levels}, ranks, terms),
        partial(checked_rounds, target, planned, levels),
        partial(rounds, target, reporter(), levels, terms),
        partial(headline_controls, target, planned, levels),
    )


def _conclude(summary: "Summary | None") -> None:
    """Say what was not finished, and exit as that asks for."""
    if summary and summary.unfinished:
        for line in summary.lines():
            print(f"not finished: {line}", file=sys.stderr)
        raise typer.Exit(2 if summary.only_busy else 1)


def _fan_out(
    stage: str,
    target: "Run",
    options: "dict[str, Any]",
    ranks: int | None,
    terms: "Terms",
    list_jobs: "Callable[[], Sequence[AnyJob]]",
    in_process: "Callable[[], Summary | None]",
    following: "Callable[[], Sequence[AnyJob]]" = list,
) -> None:
    """Do `stage` on so many MPI ranks of this host (None: as many as it feeds), or in this process. Its jobs are those of
    `list_jobs`, and in the end those `following` on what they came to."""
    from lottery.fanout.launcher import launched_rank
    from lottery.fanout.share import fed
    from lottery.jobs import side_by_side

    if ranks != 1 and launched_rank() is None:
        jobs = terms.part.of(list_jobs())  # here, so that bad input is one line without mpirun's own
        missing = [job for job in jobs if not target.network(job).is_finished]
        ranks = ranks or fed(side_by_side(missing), target.recipe.train.threads)
        if ranks > 1:
            part = f"{terms.part.index}/{terms.part.count}"
            shared = {"--part": part, "--per-gpu": terms.per_gpu, "--stall": terms.stall}
            _on_ranks(ranks, stage, target, options | shared, lambda: [*jobs, *terms.part.of(following())])
            return
    _conclude(in_process())


def _on_ranks(
    ranks: int, stage: str, target: "Run", options: "dict[str, Any]", list_jobs: "Callable[[], Sequence[AnyJob]]"
) -> None:
    """Run `stage`, whose jobs are in the end those of `list_jobs`, on MPI ranks of this host."""
    from lottery.fanout.launcher import command, launch

    target.adopt()
    chosen = [part for number in target.chosen for part in ("--replicate", str(number))]
    given = [part for option, value in options.items() if value is not None for part in (option, str(value))]
    code = launch(*command(ranks, ["-m", "lottery", stage, "--run", str(target.folder), *chosen, *given]))
    if code:
        raise typer.Exit(code)
    missing = sum(not target.network(job).is_finished for job in list_jobs())
    if missing:  # mpirun has been seen to call the loss of rank 0 a success
        print(f"mpirun ended early, {missing} networks are missing: the same command goes on from here", file=sys.stderr)
        raise typer.Exit(EXIT_CODE)


def run_all(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe, such as pipelines/digits.toml; else the run's own.")] = None,
    run: RunOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="MPI ranks on this host; else as many as its cores and memory feed.")
    ] = None,
    per_gpu: PerGpuOption = None,
    stall: StallOption = STALL_SECONDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the networks to train and their cost in epochs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """All stages: prepare, train, thresholds, retrain (or rounds), report. What is done already is not done again."""
    target = opened(run, recipe, set_, records=records)
    if dry_run:
        _dry_run(target, as_json)
        return
    alone()
    from lottery import locks
    from lottery.stages.prepare import prepare as prepare_stage
    from lottery.stages.thresholds import thresholds as thresholds_stage
    from lottery.stages.train import train as train_stage

    fanned: dict[str, Any] = {"run": target.folder, "ranks": ranks, "per_gpu": per_gpu, "stall": stall}
    progress = reporter()
    prepare_stage(target, progress)
    failed = False
    with locks.staying(target.folder):
        train_stage(target, progress)
        if "oneshot" in target.recipe.pruning:
            thresholds_stage(target, progress)
            failed |= _fails(partial(retrain, **fanned))
        if "rounds" in target.recipe.pruning:
            failed |= _fails(partial(rounds, **fanned))
        report(run=target.folder, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _fails(stage: Callable[[], None]) -> bool:
    """Whether some network of `stage` was not finished: the others go on. A request to stop is one, and Moved is raised."""
    from data_prep import files

    try:
        stage()
    except typer.Exit as stopped:
        files.check_held()
        if stopped.exit_code == EXIT_CODE:
            raise
        return stopped.exit_code != 0
    return False


def _dry_run(target: "Run", as_json: bool) -> None:
    from lottery.plan import dry_run

    lines = dry_run(target.recipe, target.known_training_images())
    if as_json:
        print_json([dataclasses.asdict(line) for line in lines])
        return
    cells = [(line.title, "?" if line.epochs is None else f"{line.epochs:g}") for line in lines]
    print_table(target.recipe.name, ("network", "epochs"), cells)
    known = [line.epochs for line in lines if line.epochs is not None]
    cost = f"{sum(known):g} epochs in all" if known else "epochs are known once the records are there"
    perhaps = sum(not line.certain for line in lines)
    only = f"; {perhaps} of them, controls, only where a ticket matches" if perhaps else ""
    print(f"{sum(line.rewound for line in lines)} networks under masks, {cost}{only}")
