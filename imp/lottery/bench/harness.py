"""The harness of all measurements: their common options, processes to measure in, rows that fail alone, and how they end."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.errors import Failed, InputError
from lottery.bench.process import Process, Result
from lottery.bench.sheet import Column, Figure, Rows, Sheet, write
from lottery.commands.options import JsonOption, SetOption, print_json
from lottery.progress import Reporter

if TYPE_CHECKING:
    from lottery.experiment.recipe import Recipe
else:
    Recipe = Any  # whose module --help need not load

# Networks that are measured where no recipe says otherwise: as --help calls them, and as --set would have them.
Network = tuple[str, tuple[str, ...]]
_SMALL = ("model.name=mobilenet_v2", "model.alpha=0.35", "data.size=32", "train.batch=128")
MOBILENET: Network = ("MobileNetV2 at 32x32", (*_SMALL, "data.crop=4", "data.flip=true"))
# The same where accuracy counts too: without records the images are digits, and a mirrored digit is no digit.
LEARNABLE: Network = (MOBILENET[0], _SMALL)

# Where there is nothing to learn, nothing may diverge either.
STILL = {"devices": 1, "learning_rate": 1e-3, "warmup": "0"}


def _writable(folder: Path | None) -> Path | None:
    """Found out before anything is measured."""
    from data_prep import files

    try:
        if folder:
            files.make_writable(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot take a measurement ({error.strerror}): name another folder with --out") from None
    return folder


QuickOption = Annotated[bool, typer.Option("--quick", help="Small and short: to see that it runs, not for its figures.")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", callback=_writable, help="Write table, JSON, figure and page there too."),
]
RecordsOption = Annotated[
    Path | None, typer.Option("--records", metavar="DIR", help="Prepared set to train on; else the recipe's, or the digits.")
]


@dataclasses.dataclass
class Bench:
    """A measurement under way: its common options, the names of the rows that `failed`, and `closing` lines."""

    name: str
    network: Network
    recipe_file: Path | None
    overrides: Sequence[str]
    repeats: int
    quick: bool
    as_json: bool
    out: Path | None
    shared: Process
    reporter: Reporter = dataclasses.field(default_factory=Reporter)
    failed: list[str] = dataclasses.field(default_factory=list)
    closing: list[str] = dataclasses.field(default_factory=list)

    def pick(self, given: int | None, full: int, small: int) -> int:
        """What was given, or else the default, which is smaller where it has to be quick."""
        return given if given is not None else small if self.quick else full

    @property
    def seconds(self) -> float:
        """How long a run of training steps lasts."""
        return 0.1 if self.quick else 1.0

    def recipe(self, *changes: str) -> Recipe:
        """The recipe whose network is measured: that of --recipe, or else the standard one, with `changes` and --set."""
        from lottery.experiment import reading

        table, standard = (reading.load(self.recipe_file), ()) if self.recipe_file else ({}, self.network[1])
        return reading.resolve(table, [*standard, *changes, *self.overrides], str(self.recipe_file or "the standard recipe"))

    def call(self, function: Callable[..., Result], alone: bool = False, **arguments: Any) -> Result:
        """As `Process.call`, in a process of its own; with --quick in one that is shared by all calls but those that have to
        be `alone`, because threads and devices are settled when TensorFlow starts."""
        if self.quick and not alone:
            return self.shared.call(function, **arguments)
        with Process() as process:
            return process.call(function, **arguments)

    @contextlib.contextmanager
    def row(self, name: str) -> Iterator[None]:
        """Say that the row is measured; where that fails, say so, and let the others go on."""
        self.reporter.say(f"measuring {name}")
        try:
            yield
        except (Failed, InputError) as error:
            self.reporter.say(f"failed: {name}: {error}")
            self.failed.append(name)

    @property
    def medians(self) -> str:
        return f"medians of {self.repeats} runs of each, in turn"

    @property
    def apart(self) -> str:
        return f"medians of {self.repeats} runs, {'rows share processes' if self.quick else 'each row in a process of its own'}"

    def sheet(self, title: str, columns: Sequence[Column], rows: Rows, figure: Figure, *notes: str, **extras: float) -> Sheet:
        return Sheet(self.name, title, machine(), columns, rows, figure, notes, extras)


def measurement(
    repeats: int = 0, few: int = 1, network: Network | None = None
) -> Callable[[Callable[..., Sheet]], Callable[..., None]]:
    """Make a command of a function that takes a `Bench` and options of its own: it gets the common options too. --repeats is
    `repeats`, or `few` where it has to be quick; 0: it has none. --recipe and --set choose what is measured for `network`."""
    full = repeats
    sentence = f"Network, images and training; else {network[0]}." if network else ""
    often = typer.Option(min=1, help="Runs of each, in turn.", show_default=f"{full}; fewer with --quick")
    choosing = {"recipe": Annotated[Path | None, typer.Option("--recipe", metavar="TOML", help=sentence)], "set_": SetOption}
    common = {"repeats": Annotated[int | None, often], "quick": QuickOption, "as_json": JsonOption, "out": OutOption}

    def command_of(measure: Callable[..., Sheet]) -> Callable[..., None]:
        @functools.wraps(measure)
        def command(
            recipe: Path | None = None,
            set_: list[str] | None = None,
            repeats: int | None = None,
            quick: bool = False,
            as_json: bool = False,
            out: Path | None = None,
            **own: Any,
        ) -> None:
            chosen = network or MOBILENET, recipe, set_ or ()
            with Process() as shared:
                bench = Bench(measure.__name__, *chosen, repeats or (few if quick else full), quick, as_json, out, shared)
                sheet = measure(bench, **own)
            _conclude(sheet, bench)

        before = list(map(_option, choosing.items())) if network else []
        after = [_option(item) for item in common.items() if full or item[0] != "repeats"]
        signature = inspect.Signature([*before, *list(inspect.signature(measure).parameters.values())[1:], *after])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
        return command

    return command_of


def _option(item: tuple[str, Any]) -> inspect.Parameter:
    name, annotation = item
    default = False if name in ("quick", "as_json") else None
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _conclude(sheet: Sheet, bench: Bench) -> None:
    """Print what was found, and write it where that was asked for. Exits with 1 where some rows failed."""
    from lottery.results.tables import print_table

    if bench.as_json:
        print_json(sheet.content())
    elif sheet.rows:
        print_table(sheet.title, sheet.headings, sheet.cells)
        print(*sheet.remarks, sep="\n")
    if bench.out and sheet.rows:
        for problem in write(sheet, bench.out):
            bench.reporter.say(problem)
        path, index = bench.out / sheet.name, bench.out / "index.html"
        bench.closing.insert(0, f"written to {path}.html, .md, .png and .json; all measurements there: {index}")
    if bench.closing and not bench.as_json:
        print(*bench.closing, sep="\n")
    if bench.failed:
        raise typer.Exit(1)


def with_training(recipe: Recipe, **train: Any) -> Recipe:
    """The recipe with other values of its `train` table, which are not looked at."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def machine() -> dict[str, Any]:
    """What a reader must know of this machine."""
    from lottery.machine import environment

    described = environment.describe()
    return {key: described[key] for key in ("python", "packages", "system", "processor", "cores", "gpus", "revision")}
