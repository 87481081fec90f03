"""Commands that train and prune: train, thresholds, retrain, rounds, and run, which is all stages in a row."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lottery.base.progress import count_of, duration
from lottery.commands import options
from lottery.commands.options import BundleOptions, PartOptions, RecipeOptions, RunOptions, SelectionOptions, WorkerOptions
from lottery.executors.workload import WHOLE
from lottery.experiment import grids
from lottery.experiment.grids import MOST, Point
from lottery.results.tables import percent, print_table, times, whole

if TYPE_CHECKING:
    from lottery.campaign import Campaign
    from lottery.executors.workload import Execution
    from lottery.experiment.plan import Cost
    from lottery.rundir.run import Run
    from lottery.stages.forecast import Forecast

Between = Literal["copies", "rounds"]
LISTED = 20  # networks; of more, their kinds
INNER = {"format", "folder", "outputs", "made_from"}  # what a table of a mask says for `imp` alone


def train(
    run: RunOptions,
    workers: WorkerOptions,
    records: options.RecordsOption = None,
    from_: options.FromOption = None,
    replicate: options.ReplicateOption = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for a trace of some steps, for TensorBoard and Perfetto.")
    ] = None,
) -> None:
    """Train the dense network of each replicate, and save it at every rewind point; under mpirun, on all its ranks."""
    from lottery.campaign import train_dense

    target = run.open(records=records, chosen=replicate, weights=from_)
    train_dense(target, workers.execution(), options.reporter(), profile)


def thresholds(
    run: RunOptions,
    quantiles: options.QuantilesOption = None,
    family: options.FamilyOption = None,
    replicate: options.ReplicateOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Cut the masks of one-shot families, one for each quantile."""
    from lottery.experiment.plan import Selection
    from lottery.pruning.costs import BYTES
    from lottery.stages.thresholds import thresholds, warnings

    target = run.open(chosen=replicate)
    target = dataclasses.replace(target, recipe=target.recipe.with_one_shot())
    pruning = target.recipe.pruning
    tables = thresholds(target, options.reporter(), Selection(tuple(family or ()), quantiles))
    if as_json:
        found = [(table, [mask.model_dump(mode="json", exclude=INNER) for mask in table]) for table in tables]
        options.print_json([{"replicate": one[0].replicate, "family": one[0].family, "masks": masks} for one, masks in found])
        return
    for table in tables:
        scores, weights = table[0].scores, table[0].pruned + table[0].remaining
        units = target.recipe.families[table[0].family].units
        count = str(scores.count) if units.plural == "weights" else f"{scores.count} {units.plural}"
        ranked = f"{count} of {weights}" if scores.count < weights else weights  # of iterations, the last
        print_table(
            f"replicate-{table[0].replicate} {table[0].family}: scores of {ranked} weights ({pruning.scope}): "
            f"min {scores.min:.3g}, mean {scores.mean:.4g}, max {scores.max:.4g}",
            (
                *("quantile", "threshold", "pruned", "remaining", "density", "effective", "of trainable", "of total"),
                *("MACs", "speed-up", "float32, bytes", "gzip, bytes"),
            ),
            [
                (
                    f"{mask.rate:g}{' !' if mask.kept.warning(pruning.collapse) else ''}",
                    "per layer" if mask.threshold is None else f"{mask.threshold:.4g}",
                    str(mask.pruned),
                    str(mask.remaining),
                    *(percent(getattr(mask.kept.density, of)) for of in ("prunable", "effective", "trainable", "total")),
                    whole(mask.costs.macs),
                    times(mask.costs.speedup),
                    *(whole(getattr(mask.costs, name)) for name in BYTES),
                )
                for mask in table
            ],
        )
        for warning in warnings(table, pruning.collapse):
            print(f"! {warning}")


def retrain(
    run: RunOptions,
    tickets: SelectionOptions,
    workers: PartOptions,
    replicate: options.ReplicateOption = None,
    until_decided: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST,
            help="Add replicates until no ticket is undecided, or each has N. It looks at the results after each replicate, by "
            "bounds so wide that a ticket that is delta worse is called matching in 5 % of cases in all.",
        ),
    ] = None,
) -> None:
    """Train the tickets and controls of one-shot families; under mpirun, on all its ranks."""
    from lottery.campaign import train_tickets, train_until_decided

    target, execution = run.open(chosen=replicate), workers.execution()
    selection = tickets.selection(partial(options.family_names, target, rounds=False))
    if until_decided is None:
        _conclude(train_tickets(target, selection, execution, options.reporter()))
        return
    options.alone()
    if replicate or workers.part != WHOLE:
        unwanted = "--replicate" if replicate else "--part"
        raise typer.BadParameter(f"--until-decided chooses what to train: leave out {unwanted}")
    _conclude(train_until_decided(target, until_decided, selection, execution, options.reporter()))


def rounds(
    run: RunOptions,
    workers: PartOptions,
    family: options.FamilyOption = None,
    rounds: options.RoundsOption = None,
    replicate: options.ReplicateOption = None,
) -> None:
    """Train families that prune in rounds: prune, rewind, train, and again; under mpirun, on all its ranks."""
    from lottery.campaign import Selection, train_tickets

    target = run.open(chosen=replicate)
    target = dataclasses.replace(target, recipe=target.recipe.with_rounds())
    selection = Selection(tuple(family or options.family_names(target, rounds=True)), rounds=rounds)
    _conclude(train_tickets(target, selection, workers.execution(), options.reporter()))


def stability(
    run: RunOptions,
    tickets: SelectionOptions,
    workers: WorkerOptions,
    replicate: options.ReplicateOption = None,
    between: Annotated[
        Between,
        typer.Option(
            "--between", help="copies: trainings of one ticket (families.FAMILY.copies); rounds: one round and the next."
        ),
    ] = "copies",
    points: Annotated[
        int | None, typer.Option(min=3, max=MOST, help="Points of each line, ends included; default: 30, or as before.")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=1, help="Find BatchNorm's statistics and the training error of so many images; default: all."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Find the error on the line between copies of tickets (instability), or between rounds; under mpirun, on all ranks."""
    from lottery.results import barriers, frame, grouping, instability
    from lottery.stages import stability as stages

    target = run.open(must_exist=True, chosen=replicate)
    pairs = {"copies": stages.copies, "rounds": stages.rounds}[between]
    line = stages.Line(points or stages.USUAL.points, examples) if points or examples else None
    if not stages.stability(target, options.reporter(), tickets.selection(), workers.execution(), pairs, line):
        return
    networks = grouping.groups(target, grouping.rows(target))
    found = barriers.groups(target, networks) if between == "rounds" else instability.groups(target)
    if as_json:
        options.print_json(frame.dicts(found))
    elif between == "rounds":
        print_table(target.recipe.name, barriers.HEADINGS, barriers.cells(found))
        print(target.worded(barriers.EXPLAINED), barriers.sentence(found), sep="\n")
    else:
        print_table(target.recipe.name, *instability.cells(found))
        print(target.worded(instability.EXPLAINED), *instability.answers(found, networks, target.rule), sep="\n")


def el2n(
    at: Annotated[Point, options.read(grids.parse_point, "--at", metavar="POINT", help="A saved point, such as 2ep.")],
    run: options.RunOption = None,
) -> None:
    """Score the training images by EL2N, their error early in training: data.hardest and data.easiest of a recipe use that."""
    from lottery.stages.el2n import score

    score(options.opened(run, must_exist=True), at, options.reporter())


def search(
    run: RunOptions,
    tickets: SelectionOptions,
    workers: BundleOptions,
    records: options.RecordsOption = None,
    over: Annotated[Literal["density", "rewind"], typer.Option(help="What to search.")] = "density",
    replicates: Annotated[int, typer.Option(min=3, max=MOST, help="Replicates of a ticket, at most.")] = 10,
    budget: Annotated[
        str | None, typer.Option(metavar="Nep|Nh", help="End once all networks of the run have taken N epochs or hours.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Find the sparsest ticket that matches, or the earliest rewind point, by bisection over what a full grid would train."""
    from lottery.campaign import search_for_ticket
    from lottery.stages.search import Search

    target = run.open(records=records)
    wanted = Search(target, tickets.selection(), over, replicates, budget, at_once=workers.ranks or 1)
    made = search_for_ticket(wanted, workers.execution(), options.reporter())
    if as_json:
        options.print_json({"answer": wanted.answer(), "tested": wanted.table()})
    else:
        print_table(target.recipe.name, ("ticket", "verdict", "replicates"), wanted.table())
        print("\n".join(wanted.answer()))
    _conclude(made)


def _conclude(made: "Campaign") -> None:
    """Print what was not finished, and exit with 2 where other processes are training it, with 1 where it failed."""
    for line in made.unfinished:
        print(f"not finished: {line}", file=sys.stderr)
    if made.unfinished:
        raise typer.Exit(2 if made.elsewhere else 1)


@dataclasses.dataclass
class RoomOptions(BundleOptions):
    """As `BundleOptions`, where the host says how many processes there are."""

    ranks: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Processes on this host; default: as many as it has room for.")
    ] = None


def run_all(
    run: RecipeOptions,
    workers: RoomOptions,
    records: options.RecordsOption = None,
    from_: options.FromOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is to be trained, how long that takes, and the disk it needs.")
    ] = False,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=999_999, help="With --dry-run: how long so many nodes take, each with --ranks processes (default: 1)."
        ),
    ] = None,
    epoch_seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="With --dry-run: how long an epoch of a network takes; default: as long as here."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run all stages: prepare, train, thresholds, retrain, report. Finished work is kept."""
    given = {"--nodes": nodes, "--epoch-seconds": epoch_seconds}
    if unwanted := [name for name, value in given.items() if value is not None and not dry_run]:
        raise typer.BadParameter(f"{unwanted[0]} is for a forecast: add --dry-run, or submit the run with `imp slurm run`")
    if epoch_seconds is not None and not 0 < epoch_seconds < 1e9:
        raise typer.BadParameter(f"--epoch-seconds {epoch_seconds:g} is not the length of an epoch: write seconds, such as 90")
    target = run.open(records=records, weights=from_)
    if dry_run:
        _dry_run(target, workers.execution(), nodes, epoch_seconds, as_json)
        return
    from lottery.campaign import campaign
    from lottery.commands.reading import show_report

    made = campaign(target, workers.execution(), options.reporter())
    if made.report:
        show_report(target, made.report, as_json)
    _conclude(made)


def _dry_run(target: "Run", execution: "Execution", nodes: int | None, epoch_seconds: float | None, as_json: bool) -> None:
    from lottery.stages.forecast import forecast

    left = forecast(target, execution, options.reporter(), nodes, epoch_seconds)
    if as_json:
        networks = [{name: value for name, value in vars(one).items() if name != "network"} for one in left.networks]
        options.print_json(dataclasses.asdict(dataclasses.replace(left, networks=[])) | {"networks": networks})
        return
    kinds: dict[str, list[Cost]] = {}
    for one in left.networks:
        kinds.setdefault(one.kind if len(left.networks) > LISTED else one.title, []).append(one)
    rows = [(name, str(len(alike)), _epochs(alike), _range([one.cost for one in alike])) for name, alike in kinds.items()]
    if rows:
        print_table(target.recipe.name, ("networks", "number", "epochs", "cost of each"), rows)
    print(_trainings(left))
    if left.networks and left.seconds is not None:
        print(_time(left))
    elif left.networks:
        print("how long they take is known once the records are there: run `imp prepare` first")
    needed = ", ".join(f"{what} {_gigabytes(count)}" for what, count in left.disk.items() if count)
    if needed:
        warning = ": too little" if sum(left.disk.values()) > left.free else ""
        print(f"disk: {needed}; {_gigabytes(left.free)} are free{warning}")


def _time(left: "Forecast") -> str:
    """How long the trainings take, where, and how that is known."""
    timed = f"as in {count_of(left.timed, 'training')} of this run" if left.timed else "measured on made-up examples"
    source = ", as given" if left.given else f" on {left.device}, {timed}"
    where = "" if left.processes == 1 else f" in {left.processes} processes"
    if left.nodes:
        hours = (left.node_seconds or 0.0) / 3600
        where = f" on {count_of(left.nodes, 'node')}, {hours:,.{0 if hours >= 10 else 2}f} node-hours"
    seconds = left.epoch_seconds or 0.0
    epoch = f"{seconds:.2g} s" if seconds < 10 else duration(seconds)
    return f"about {duration(left.seconds or 0.0)} of training{where}: {epoch} an epoch{source}"


def _trainings(left: "Forecast") -> str:
    """How many networks are to be trained, of which kinds, and for how many epochs, and how many are evaluated as they are."""
    trained = [one for one in left.networks if one.is_trained]
    perhaps = sum(not one.certain for one in left.networks)
    counts = Counter(one.role for one in trained)
    kinds = f" ({', '.join(f'{counts[role]} {role}' for role in ('dense', 'tickets', 'controls'))})" if left.networks else ""
    others = len(left.networks) - len(trained)
    evaluated = f"; {others} more {'is' if others == 1 else 'are'} evaluated without training" if others else ""
    epochs = f", {_epochs(left.networks)} epochs" if left.networks else ""
    only = f"; {perhaps} of them only if a ticket matches" if perhaps else ""
    done = f"; {count_of(left.finished, 'network')} more finished" if left.finished else ""
    return f"{count_of(len(trained), 'training')}{kinds}{epochs}{only}{evaluated}{done}"


def _epochs(networks: "Sequence[Cost]") -> str:
    known = [one.epochs for one in networks if one.epochs is not None]
    return f"{sum(known):g}" if known else "?"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} .. {high}"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
