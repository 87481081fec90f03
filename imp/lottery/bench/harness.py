"""The harness of all measurements: their common options, processes to measure in, rows that fail alone, and how they end."""

import contextlib
import dataclasses
import functools
import inspect
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lottery.base.errors import Failed, InputError, first_line
from lottery.base.progress import Reporter
from lottery.bench.sheet import Column, Rows, content, write
from lottery.commands.options import JsonOption, SetOption, print_json

if TYPE_CHECKING:
    from lottery.bench.sheet import Figure
    from lottery.experiment.recipe import Recipe
else:
    Recipe = Any  # whose module --help need not load

Result = TypeVar("Result")

# Networks that are measured where no recipe says otherwise: as --help calls them, and as --set would have them.
Network = tuple[str, tuple[str, ...]]
_SMALL = ("model.name=mobilenet_v2", "model.alpha=0.35", "data.size=32", "train.batch=128")
MOBILENET: Network = ("MobileNetV2 at 32x32", (*_SMALL, "data.crop=4", "data.flip=true"))
# The same where accuracy counts too: without records the images are digits, and a mirrored digit is no digit.
LEARNABLE: Network = (MOBILENET[0], _SMALL)

# Where there is nothing to learn, nothing may diverge either.
STILL = {"devices": 1, "learning_rate": 1e-3, "warmup": "0"}

MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError")


def _writable(folder: Path | None) -> Path | None:
    """Found out before anything is measured."""
    from lottery.base import files

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


class TooLarge(Failed):
    """It needs more memory than it may have: TensorFlow said so, or the process was killed, which is how that looks too."""


class Process(contextlib.AbstractContextManager["Process"]):
    """A process, with TensorFlow unless told otherwise, that does one call after another, so that memory, threads and failures
    are the measured thing's own; it starts at the first one, and anew where it has ended. It ends with the context, and with
    the process that asks."""

    _child: BaseProcess | None = None

    def __init__(self, tensorflow: bool = True) -> None:
        self._tensorflow = tensorflow
        self._reaping = threading.Lock()  # of two threads that wait for a child one is told how it ended

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it, and whatever it has started; the next call starts another. A call under way raises TooLarge."""
        if self._lives() and self._child and self._child.pid:
            with contextlib.suppress(ProcessLookupError):  # it has just begun, and has no group of its own yet
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGKILL)
            with self._reaping:
                self._child.join()

    def _lives(self) -> bool:
        with self._reaping:
            return self._child is not None and self._child.is_alive()

    def call(self, function: Callable[..., Result], **arguments: Any) -> Result:
        """What `function`, one of a module's, returns for `arguments`. Raises InputError where that does, TooLarge where it is
        memory, and Failed, with a line that says why, where there is no result."""
        if not self._lives():
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=_serve, args=[theirs, self._tensorflow], daemon=True)
            self._child.start()
            theirs.close()
        assert self._child
        try:
            self._pipe.send((function, arguments))
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            with self._reaping:
                self._child.join()
                code = self._child.exitcode or 0
            if code < 0:
                raise TooLarge(f"its process was ended by {signal.Signals(-code).name}; is there memory enough?") from None
            raise Failed(f"its process ended with code {code}") from None
        if error:
            raise error
        return result


def _serve(pipe: Connection, tensorflow: bool) -> None:
    """Answer each call with its result or its error."""
    from lottery.engine.start import start_tensorflow

    os.setpgrp()  # Ctrl-C is for the process that asks
    os.dup2(2, 1)  # standard output is for the sheet
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                if tensorflow:
                    start_tensorflow()
                answer = function(**arguments), None
            except InputError as error:
                answer = None, error
            except Exception as error:
                kind = TooLarge if type(error).__name__ in MEMORY_ERRORS else Failed
                answer = None, kind(f"{type(error).__name__}: {first_line(error)}")
            pipe.send(answer)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent
    parent.join()
    os._exit(1)


@dataclasses.dataclass
class Bench:
    """A measurement under way: its common options, its `rows`, the names of those that `failed`, and `closing` lines."""

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
    rows: Rows = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    noun: str = "images"  # what examples are called
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
        origin = str(self.recipe_file or "the standard recipe")
        recipe = reading.resolve(table, [*standard, *changes, *self.overrides], origin)
        self.noun = "examples" if has_texts(recipe) else "images"
        return recipe

    def image_recipe(self) -> Recipe:
        """As `recipe`, for what is measured on images alone. Raises InputError where it is of texts."""
        recipe = self.recipe()
        if has_texts(recipe):
            raise InputError(f"`imp bench {self.name}` is of images, and {recipe.data.source} has texts: take another recipe")
        return recipe

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

    def sheet(self, title: str, columns: Sequence[Column], figure: "Figure", *notes: str, **extras: float) -> None:
        """Print what was found, and write it where that was asked for. Headings and notes call examples what they are."""
        from lottery.results.tables import print_table

        columns = [column._replace(heading=column.heading.replace("images", self.noun)) for column in columns]
        notes = tuple(note.replace("images", self.noun) for note in notes)
        found = content(self.name, title, machine(), columns, self.rows, notes, extras)
        if self.as_json:
            print_json(found)
        elif self.rows:
            print_table(title, [column.heading for column in columns], found["cells"])
            print(*found["remarks"], sep="\n")
        if self.out and self.rows:
            for problem in write(found, figure, self.out):
                self.reporter.say(problem)
            path, index = self.out / self.name, self.out / "index.html"
            self.closing.insert(0, f"written to {path}.html, .md, .png and .json; all measurements there: {index}")
        if self.closing and not self.as_json:
            print(*self.closing, sep="\n")


def measurement(
    repeats: int = 0, few: int = 1, network: Network | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes a `Bench` and options of its own: it gets the common options too. --repeats is
    `repeats`, or `few` where it has to be quick; 0: it has none. --recipe and --set choose what is measured for `network`."""
    full = repeats
    often = typer.Option(min=1, help="Runs of each, in turn.", show_default=f"{full}; fewer with --quick")
    choosing = typer.Option("--recipe", metavar="TOML", help=f"Network, images and training; else {(network or ('',))[0]}.")

    def command_of(measure: Callable[..., None]) -> Callable[..., None]:
        def command(
            recipe: Annotated[Path | None, choosing] = None,
            set_: SetOption = None,
            repeats: Annotated[int | None, often] = None,
            quick: QuickOption = False,
            as_json: JsonOption = False,
            out: OutOption = None,
            **own: Any,
        ) -> None:
            chosen = network or MOBILENET, recipe, set_ or ()
            with Process() as shared:
                bench = Bench(measure.__name__, *chosen, repeats or (few if quick else full), quick, as_json, out, shared)
                measure(bench, **own)
            if bench.failed:
                raise typer.Exit(1)

        common = list(inspect.signature(command).parameters.values())[:-1]
        own = list(inspect.signature(measure).parameters.values())[1:]
        parameters = [*(common[:2] if network else ()), *own, *common[2 if full else 3 :]]
        functools.update_wrapper(command, measure)
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
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


def machine() -> dict[str, Any]:
    """What a reader must know of this machine."""
    from lottery.base import environment

    described = environment.describe()
    return {key: described[key] for key in ("python", "packages", "system", "processor", "cores", "gpus", "revision")}
