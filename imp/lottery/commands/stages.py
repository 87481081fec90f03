"""Commands that train and prune: train, thresholds, retrain, rounds, and run, which is all stages in a row."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lottery.commands.options import (
    STALL_SECONDS,
    FamilyOption,
    JsonOption,
    PartOption,
    PerGpuOption,
    QuantilesOption,
    RanksOption,
    RecipeOption,
    RecordsOption,
    ReplicateOption,
    RewindOption,
    RoundsOption,
    RunOption,
    SetOption,
    StallOption,
    alone,
    family_names,
    opened,
    print_json,
    reporter,
)
from lottery.experiment.grids import MOST
from lottery.results.tables import percent, print_table

if TYPE_CHECKING:
    from lottery.campaign import Campaign
    from lottery.rundir.run import Run
    from lottery.stages.thresholds import Thresholds


def train(
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Same as --set; agents of a W&B sweep write values like this."),
    ] = None,
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    replicate: ReplicateOption = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for a trace of some steps, for TensorBoard and Perfetto.")
    ] = None,
) -> None:
    """Train the dense network, and save it at every rewind point."""
    from lottery.stages.train import train
    from lottery.tracking import agents_run

    alone()
    for value in values or ():
        if "=" not in value:
            raise typer.BadParameter(f"{value!r} is not KEY=VALUE; to name a recipe, write --recipe {value}")
    overrides = [*(set_ or []), *(values or [])]
    train(opened(run or agents_run(), recipe, overrides, records=records, chosen=replicate), reporter(), profile)


def thresholds(
    quantiles: QuantilesOption = None,
    family: FamilyOption = None,
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    replicate: ReplicateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut the masks of one-shot families, one for each quantile."""
    from lottery.experiment.plan import Selection
    from lottery.stages.thresholds import thresholds

    alone()
    target = opened(run, recipe, set_, chosen=replicate)
    target = dataclasses.replace(target, recipe=target.recipe.with_one_shot())
    tables = thresholds(target, reporter(), Selection(tuple(family or ()), quantiles))
    if as_json:
        print_json([table.as_json() for table in tables])
        return
    for table in tables:
        _print_thresholds(table, target.recipe.pruning.scope)


def _print_thresholds(table: "Thresholds", scope: str) -> None:
    scores = table.masks[0].scores
    title = (
        f"replicate-{table.replicate} {table.family}: scores of {scores.count} weights ({scope}): "
        f"min {scores.min:.3g}, mean {scores.mean:.4g}, max {scores.max:.4g}"
    )
    print_table(
        title,
        ("quantile", "threshold", "pruned", "remaining", "density", "effective", "of trainable", "of total"),
        [
            (
                f"{mask.rate:g}{' !' if mask.kept.warning(table.collapse) else ''}",
                "per layer" if mask.threshold is None else f"{mask.threshold:.4g}",
                str(mask.pruned),
                str(mask.remaining),
                *(percent(getattr(mask.kept.density, of)) for of in ("prunable", "effective", "trainable", "total")),
            )
            for mask in table.masks
        ],
    )
    for warning in table.warnings:
        print(f"! {warning}")


def retrain(
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    family: FamilyOption = None,
    quantiles: QuantilesOption = None,
    rewind: RewindOption = None,
    rounds: RoundsOption = None,
    replicate: ReplicateOption = None,
    until_decided: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST,
            help="Add replicates until no ticket is undecided, or each has N. It looks at the results after each replicate, so "
            "a ticket that is delta worse is called matching in 9 % of cases for N = 5, 12 % for 7, 15 % for 10, 19 % for 20.",
        ),
    ] = None,
    ranks: RanksOption = 1,
    part: PartOption = "1/1",
    per_gpu: PerGpuOption = None,
    stall: StallOption = STALL_SECONDS,
) -> None:
    """Train the tickets and controls of one-shot families; under mpirun, on all its ranks."""
    from lottery.campaign import Execution, Selection, train_tickets, train_until_decided
    from lottery.fanout.tasks import Part

    target = opened(run, recipe, set_, chosen=replicate)
    selection = Selection(tuple(family or family_names(target, rounds=False)), quantiles, rewind, rounds)
    execution = Execution(ranks, per_gpu, stall, Part.parse(part))
    if until_decided is None:
        _conclude(train_tickets(target, selection, execution, reporter()))
        return
    alone()
    if replicate or part != "1/1":
        unwanted = "--replicate" if replicate else "--part"
        raise typer.BadParameter(f"--until-decided chooses what to train: leave out {unwanted}")
    made = train_until_decided(target, until_decided, selection, execution, reporter())
    _conclude(dataclasses.replace(made, code=1 if made.code else 0))


def rounds(
    run: RunOption = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    family: FamilyOption = None,
    rounds: RoundsOption = None,
    replicate: ReplicateOption = None,
    ranks: RanksOption = 1,
    part: PartOption = "1/1",
    per_gpu: PerGpuOption = None,
    stall: StallOption = STALL_SECONDS,
) -> None:
    """Train families that prune in rounds: prune, rewind, train, and again; under mpirun, on all its ranks."""
    from lottery.campaign import Execution, Selection, train_tickets
    from lottery.fanout.tasks import Part

    target = opened(run, recipe, set_, chosen=replicate)
    target = dataclasses.replace(target, recipe=target.recipe.with_rounds())
    selection = Selection(tuple(family or family_names(target, rounds=True)), rounds=rounds)
    _conclude(train_tickets(target, selection, Execution(ranks, per_gpu, stall, Part.parse(part)), reporter()))


def _conclude(made: "Campaign") -> None:
    """Print what was not finished, and exit with the code of `made`."""
    for line in made.unfinished:
        print(f"not finished: {line}", file=sys.stderr)
    if made.code:
        raise typer.Exit(made.code)


def run_all(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe, such as pipelines/digits.toml; default: the run's own.")
    ] = None,
    run: RunOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="MPI ranks on this host; default: as many as it has room for.")
    ] = None,
    per_gpu: PerGpuOption = None,
    stall: StallOption = STALL_SECONDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the networks to train and their cost in epochs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run all stages: prepare, train, thresholds, retrain, report. Finished work is kept."""
    target = opened(run, recipe, set_, records=records)
    if dry_run:
        _dry_run(target, as_json)
        return
    alone()
    from lottery.campaign import Execution, campaign
    from lottery.commands.reading import show_report

    made = campaign(target, Execution(ranks, per_gpu, stall), reporter())
    if made.report:
        show_report(target, made.report, as_json)
    _conclude(dataclasses.replace(made, code=1 if made.code else 0))


def _dry_run(target: "Run", as_json: bool) -> None:
    from lottery.experiment.dry_run import dry_run

    lines = dry_run(target.recipe, target.known_training_images())
    if as_json:
        print_json([dataclasses.asdict(line) for line in lines])
        return
    cells = [(line.title, "?" if line.epochs is None else f"{line.epochs:g}") for line in lines]
    print_table(target.recipe.name, ("network", "epochs"), cells)
    known = [line.epochs for line in lines if line.epochs is not None]
    cost = f"{sum(known):g} epochs in all" if known else "the cost in epochs is known once the records are prepared"
    perhaps = sum(not line.certain for line in lines)
    only = f"; {perhaps} of them are controls, trained only if a ticket matches" if perhaps else ""
    print(f"{sum(line.rewound for line in lines)} networks under masks, {cost}{only}")
