"""The harness of all scripts that measure: their common options, and a recipe to be measured."""

import dataclasses
import functools
import inspect
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.base.errors import Failed, InputError
from lottery.base.progress import count_of
from lottery.bench import harness
from lottery.bench.process import Process, Result
from lottery.bench.sheet import Column
from lottery.commands.measuring import OutOption, QuickOption
from lottery.commands.options import JsonOption, SetOption

if TYPE_CHECKING:
    from lottery.bench.sheet import Figure
    from lottery.experiment.recipe import Recipe
else:
    Recipe = Any  # whose module --help need not load

# Networks that are measured where no recipe says otherwise: as --help calls them, and as --set would have them.
Network = tuple[str, tuple[str, ...]]
_SMALL = ("model.name=mobilenet_v2", "model.alpha=0.35", "data.size=32", "train.batch=128")
MOBILENET: Network = ("MobileNetV2 at 32x32", (*_SMALL, "data.crop=4", "data.flip=true"))
# The same where accuracy counts too: without records the images are digits, and a mirrored digit is not a digit.
LEARNABLE: Network = (MOBILENET[0], _SMALL)

# Where there is nothing to learn, nothing may diverge either.
STILL = {"devices": 1, "learning_rate": 1e-3, "warmup": "0"}


@dataclasses.dataclass(kw_only=True)
class Bench(harness.Bench):
    """A measurement under way, of a recipe: that of --recipe and --set, or else the `standard` one, as --set would have it."""

    standard: Sequence[str]
    recipe_file: Path | None
    overrides: Sequence[str]
    noun: str = "images"  # what examples are called

    def pick(self, given: int | None, full: int, small: int) -> int:
        """What was given, or else the default, which is smaller where it has to be quick."""
        return given if given is not None else small if self.quick else full

    @property
    def seconds(self) -> float:
        """How long a run of training steps lasts."""
        return 0.1 if self.quick else 1.0

    def recipe(self, *changes: str) -> Recipe:
        """The recipe that is measured: that of --recipe, or else the standard one, with `changes` and --set."""
        from lottery.experiment import reading

        table, standard = (reading.load(self.recipe_file), ()) if self.recipe_file else ({}, self.standard)
        origin = str(self.recipe_file or "the standard recipe")
        recipe = reading.resolve(table, [*standard, *changes, *self.overrides], origin)
        self.noun = "examples" if has_texts(recipe) else "images"
        return recipe

    def image_recipe(self, *changes: str) -> Recipe:
        """As `recipe`, for what is measured on images alone. Raises InputError where it is of texts."""
        recipe = self.recipe(*changes)
        if has_texts(recipe):
            raise InputError(f"`{self.name}` is of images, and {recipe.data.source} has texts: take another recipe")
        return recipe

    def call(self, function: Callable[..., Result], alone: bool = False, **arguments: Any) -> Result:
        """As `Process.call`, in a process of its own; with --quick in one that is shared by all calls but those that have to
        be `alone`, because threads and devices are settled when TensorFlow starts."""
        if self.quick and not alone:
            return self.shared.call(function, **arguments)
        with Process() as process:
            return process.call(function, **arguments)

    @property
    def medians(self) -> str:
        return f"medians of {count_of(self.repeats, 'run')} of each, in turn"

    @property
    def apart(self) -> str:
        processes = "rows share processes" if self.quick else "each row in a process of its own"
        return f"medians of {count_of(self.repeats, 'run')}, {processes}"

    def sheet(self, title: str, columns: Sequence[Column], figure: "Figure", *notes: str) -> None:
        """As of every measurement; headings and notes call examples what they are."""
        columns = [column._replace(heading=column.heading.replace("images", self.noun)) for column in columns]
        super().sheet(title, columns, figure, *(note.replace("images", self.noun) for note in notes))


def measurement(repeats: int = 0, network: Network | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes a `Bench` and options of its own: it gets the common options too. --repeats is
    `repeats` unless it is given; 0: it has none. --recipe and --set choose what is measured for `network`."""
    choosing = typer.Option("--recipe", metavar="TOML", help=f"Network, images and training; else {(network or [''])[0]}.")
    often = typer.Option("--repeats", min=1, help="Runs of each, in turn.", show_default=f"{repeats}; 1 with --quick")

    def command_of(measure: Callable[..., None]) -> Callable[..., None]:
        def command(
            recipe: Annotated[Path | None, choosing] = None,
            set_: SetOption = None,
            given: Annotated[int | None, often] = None,
            quick: QuickOption = False,
            as_json: JsonOption = False,
            out: OutOption = None,
            **options: Any,
        ) -> None:
            standard = network[1] if network else ()
            with Process() as shared:
                count = given or (1 if quick else repeats)
                common = {"repeats": count, "quick": quick, "as_json": as_json, "out": out, "shared": shared}
                of_recipe = {"standard": standard, "recipe_file": recipe, "overrides": set_ or ()}
                bench = Bench(name=measure.__name__, **common, **of_recipe)
                measure(bench, **options)
            if bench.failed:
                raise typer.Exit(1)

        *common, _ = inspect.signature(command).parameters.values()
        _, *special = inspect.signature(measure).parameters.values()
        parameters = [*(common[:2] if network else ()), *special, *common[2 if repeats else 3 :]]
        functools.update_wrapper(command, measure)
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return command_of


def with_training(recipe: Recipe, **train: Any) -> Recipe:
    """The recipe with other values of its `train` table."""
    changed = type(recipe.train).model_validate({**recipe.train.model_dump(), **train})
    return recipe.model_copy(update={"train": changed})


def has_texts(recipe: Recipe) -> bool:
    """Whether its examples are texts, not images."""
    from data_prep.sources import is_of_texts

    return is_of_texts(recipe.data.source)


def size_of(recipe: Recipe) -> str:
    """Of an example: `32x32`, or tokens of a document and of its texts, `64 + 9x24 tokens`."""
    texts, size = recipe.texts, recipe.data.size
    if has_texts(recipe):
        return f"{texts.document} + {1 + texts.candidates}x{texts.candidate} tokens"
    return f"{size}x{size}"


def rate(name: str, heading: str, form: str = ",.0f") -> list[Column]:
    """The columns of `timing.spread` where more is faster."""
    return [Column(name, heading, form), Column("low", "slowest", form), Column("high", "fastest", form)]


def duration(name: str, heading: str, form: str) -> list[Column]:
    """The columns of `timing.spread` where less is faster."""
    return [Column(name, heading, form), Column("low", "fastest", form), Column("high", "slowest", form)]


def imp(*words: str) -> None:
    """Type a command. Raises Failed where it does not end well."""
    print("imp", *words, flush=True)
    line = [str(Path(sys.executable).with_name("imp")), *words]
    if code := subprocess.run(line).returncode:
        raise Failed(f"imp {words[0]} ended with {code}: the same command goes on from here")
