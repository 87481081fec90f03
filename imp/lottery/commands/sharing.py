"""Commands that hand tickets on: export, import, tickets."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.base.errors import InputError, printable
from lottery.base.progress import count_of
from lottery.commands.options import JsonOption, RunOption, SetOption, opened, print_json, reporter
from lottery.results.tables import percent, print_table, times, whole
from lottery.rundir.wording import value

TICKET_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "ticket": lambda row: row["folder"],
    "network": lambda row: row["network"],
    "model": lambda row: row["model"],
    "data": lambda row: row["data"],
    "density": lambda row: percent(row["density"]),
    "fewer MACs": lambda row: times(row["speedup"]),
    "test": lambda row: _tested(row),
    "verdict": lambda row: row["verdict"] or "",
    "license": lambda row: row["license"],
}


def export(
    ticket: Annotated[
        str, typer.Option(metavar="NAME", help="Network, such as q90-step-000034, lr/round-03-step-000000, dense.")
    ],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="keras, onnx, tflite, tflite_sparse, mnn, torch, npz, folder, zip.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="File or folder to write; default: one in the run's export folder.")
    ] = None,
    variant: Annotated[str, typer.Option(help="ticket, or a control, such as reinit.")] = "ticket",
    replicate: Annotated[int, typer.Option(min=1, help="Which replicate.")] = 1,
    license: Annotated[
        str, typer.Option(metavar="ID", help="For the model card of a ticket folder or int8 file, such as mit.")
    ] = "unknown",
    int8: Annotated[
        bool, typer.Option("--int8", help="With --to tflite: in 8-bit whole numbers alone, tested, with a model card.")
    ] = False,
    compact: Annotated[bool, typer.Option("--compact", help="Without the channels that do nothing: smaller, faster.")] = False,
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained network to a file or a folder that other programs load, and show how small it compresses."""
    from data_prep.sources import is_of_texts
    from lottery.results.card import Int8
    from lottery.share.export import FOLDERS, FORMATS, export

    if to not in FORMATS:
        raise InputError(f"--to {to}: write {', '.join(FORMATS)}")
    target = opened(run, must_exist=True)
    made = export(target, reporter(), ticket, to, out, replicate, variant, license, int8, compact)
    if as_json:
        print_json(made)
        return
    print_table(
        made["path"],
        (
            *("bytes", "gzip -9", "dense, gzip -9", "of dense"),
            *("MACs", "speed-up", "density", "exact zeros", "test"),
        ),
        [
            (
                f"{made['bytes']:,}",
                f"{made['gzip_bytes']:,}",
                f"{made['dense_gzip_bytes']:,}",
                percent(made["gzip_bytes"] / made["dense_gzip_bytes"]),
                whole(made["macs"]),
                times(made["speedup"]),
                percent(made["density"]),
                f"{made['zeros']:,} of {made['weights']:,}",
                percent(made[f"test_{target.metric}"]),
            )
        ],
    )
    if compact:
        rows = [(name, *map(whole, made[name].values())) for name in ("compact", "full")]
        print_table("", ("", "channels", "parameters", "MACs", "bytes"), rows)
    if int8:
        print(Int8(**made["int8"]).sentence(target.metric), f"Its model card: {made['card']}")
    elif to not in ("npz", *FOLDERS) and not is_of_texts(target.recipe.data.source):
        mean, deviation = target.recipe.data.mean, target.recipe.data.deviation
        outputs = "logits" if target.recipe.task == "classification" else f"the outputs of {target.recipe.task}"
        print(f"It takes float32 images, (pixel / 255 - {mean}) / {deviation}, and returns {outputs}.")


def import_(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Ticket that `imp export --to folder` or `--to zip` wrote.")],
    run: RunOption = None,
    set_: SetOption = None,
) -> None:
    """Make a run that trains a ticket from a folder anew, on the same examples or (--set data.source=...) on others."""
    from lottery.experiment.plan import dry_run
    from lottery.rundir.tickets import open_ticket
    from lottery.share.folder import adopt, unzip

    place = unzip(folder) if folder.is_file() else folder
    ticket = open_ticket(place.resolve())
    made = adopt(ticket, run, set_ or ())
    if place != folder:
        print(
            f"{place} is {folder}, unzipped. It lacks the pruned weights of the start: dense and shuffle draw them at random."
        )
    if (family := ticket.recipe.families.get(ticket.record.result.family or "")) and family.changes_masks:
        print(f"Its mask changed in training ({family.updates}). Here the last one stays, as in the control rewound.")
    for what, name in (("network is the function", made.recipe.model.name), ("task is the class", made.recipe.task)):
        if ":" in name:
            print(f"Its {what} {name}: `imp train` calls it, so look at it first.")
    count, replicates = len(dry_run(made.estimated_plan())), count_of(made.recipe.replicates, "replicate")
    print(f"{made.folder} is ready: {count} networks, of {replicates}. `imp run --run {made.folder}` trains them.")


def tickets(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Tickets, folders or .zip, or folders that contain some.")
    ],
    as_json: JsonOption = False,
) -> None:
    """List the tickets in folders, and check every file of them."""
    from lottery.rundir.tickets import VALUES, is_zipped_ticket, listed, open_ticket, unzipped

    rows, damaged = [], []
    for top in folders:
        if not top.exists():
            raise InputError(f"there is no folder {top}")
        zips = filter(is_zipped_ticket, top.rglob("*.zip"))
        found = sorted({path.parent for path in top.rglob(VALUES)}.union(zips)) or [top]  # which says what it lacks
        for place in found:
            try:
                with unzipped(place) as folder:
                    rows.append({**listed(open_ticket(folder)), "folder": str(place)})
            except InputError as error:
                damaged.append(str(error))
    if as_json:
        print_json(rows)
    elif rows:
        print_table("", list(TICKET_COLUMNS), [[printable(show(row)) for show in TICKET_COLUMNS.values()] for row in rows])
    if damaged:
        raise InputError("; ".join(damaged))


def _tested(row: Mapping[str, Any]) -> str:
    """The deciding metric of a ticket on its test split, named where that is not accuracy."""
    ((metric, share),) = [(key.removeprefix("test_"), row[key]) for key in row if key.startswith("test_")]
    return "" if share is None else value(metric, share)
