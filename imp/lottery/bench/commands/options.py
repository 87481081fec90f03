"""What the measurements share: their options, and how they end."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep import files
from data_prep.errors import InputError
from lottery.commands.options import JsonOption as JsonOption
from lottery.commands.options import SetOption as SetOption

if TYPE_CHECKING:
    from lottery.bench.sheet import Sheet
    from lottery.recipe import Recipe


def repeats_of(full: int) -> Any:
    """The option that says how often, of a command that does so `full` times."""
    return typer.Option(min=1, help="Runs of each, in turn.", show_default=f"{full}; fewer with --quick")


RepeatsOption = Annotated[int | None, repeats_of(7)]
RecipeOption = Annotated[
    Path | None, typer.Option("--recipe", metavar="TOML", help="Network, images and training; else MobileNetV2 at 32x32.")
]


def _writable(folder: Path | None) -> Path | None:
    """Found out before anything is measured."""
    try:
        if folder:
            files.make_writable(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot take a measurement ({error.strerror}): name another folder with --out") from None
    return folder


OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", callback=_writable, help="Write table, JSON, figure and page there too."),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="Small and short: to see that it runs, not for its figures.")]

STANDARD: dict[str, Any] = {
    "model": {"name": "mobilenet_v2", "alpha": 0.35},
    "data": {"size": 32, "crop": 4, "flip": True},
    "train": {"batch": 128},
}

# The same where accuracy counts too: without records the images are digits, and a mirrored digit is no digit.
LEARNABLE: dict[str, Any] = {**STANDARD, "data": {"size": 32}}


def pick(given: int | None, full: int, small: int, quick: bool) -> int:
    """What was given, or else the default, which is smaller where it has to be quick."""
    return given if given is not None else small if quick else full


def measured(file: Path | None, overrides: list[str] | None, standard: dict[str, Any] = STANDARD) -> "Recipe":
    """The recipe whose network is measured: of a file, or else the `standard` one."""
    from lottery import recipe

    table = recipe.load(file) if file else standard
    return recipe.resolve(table, overrides or (), str(file or "the standard recipe"))


def conclude(sheet: "Sheet", as_json: bool, out: Path | None, failed: Sequence[str] = ()) -> None:
    """Print what was found, and write it where that was asked for. Exits with 1 where some rows `failed`."""
    from lottery.bench.sheet import write
    from lottery.commands.options import print_json
    from lottery.progress import Reporter
    from lottery.tables import print_table

    if as_json:
        print_json(sheet.content())
    elif sheet.rows:
        print_table(sheet.title, sheet.headings, sheet.cells)
        for remark in sheet.remarks:
            print(remark)
    if out and sheet.rows:
        for problem in write(sheet, out):
            Reporter().say(problem)
        if not as_json:
            print(f"written to {out / sheet.name}.html, .md, .png and .json; all measurements there: {out / 'index.html'}")
    if failed:
        raise typer.Exit(1)
