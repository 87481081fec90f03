"""The entry point of the command line: the commands in the order of `imp --help`, and their exit codes."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from lottery import __version__
from lottery.base import extras, preemption
from lottery.base.errors import Failed, Moved, one_line
from lottery.commands import cluster, examining, measuring, options, preparing, reading, sharing, stages, sweeping
from lottery.executors import communicator
from lottery.executors.launcher import launched_rank
from lottery.trackers import mirror

INTERRUPTED = 128 + signal.SIGINT
WIDEST = 128  # columns of help


def _show(version: bool) -> None:
    if version:
        print(f"imp {__version__}")
        raise typer.Exit


VersionOption = Annotated[bool, typer.Option("--version", is_eager=True, callback=_show, help="Show the version.")]


class Commands(typer.core.TyperGroup):
    """A group whose help has the whole sentence of each command, which Click would cut short."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].help or "") for name in self.list_commands(ctx)])


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich takes longer to load than all the rest of --help
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
    help="Find lottery tickets: train, prune, rewind, retrain, compare.",
)
OF_MANY = (stages.train, stages.retrain, stages.rounds, stages.stability, sweeping.sweep)  # MPI ranks
for command in (
    *(preparing.prepare, preparing.verify, reading.recipe, stages.train, stages.thresholds, stages.retrain, stages.rounds),
    *(stages.stability, stages.search, stages.el2n),
    *(reading.report, reading.explore, reading.compare, reading.status, stages.run_all),
    *(sharing.export, sharing.import_, sharing.tickets),
    *(examining.doctor, sweeping.sweep),
):
    app.command(command.__name__.removesuffix("_all").removesuffix("_"))(options.command(command, command in OF_MANY))
bench = typer.Typer(cls=Commands, no_args_is_help=True, help="Measure exported networks on this machine.")
bench.command()(options.command(measuring.inference, of_many=False))
app.add_typer(bench, name="bench")
slurm = typer.Typer(cls=Commands, no_args_is_help=True, help="Write batch scripts for a cluster, and submit them.")
for script in (cluster.run, cluster.train, cluster.retrain, cluster.rounds, cluster.sweep):
    slurm.command()(options.command(script, of_many=False))
app.add_typer(slurm, name="slurm")


@app.callback()
def _top(version: VersionOption = False) -> None:
    pass


def main(command: Callable[..., None] | None = None) -> None:
    """Run the command line, or the one `command` of a script. Exit codes: 2, with one line, for what the user can fix; 1 for
    what failed; 130 for Ctrl-C; 75 for SIGTERM, SIGUSR1 and SIGHUP."""
    _open_streams()
    try:
        _run(_alone(command) if command else app)
    except SystemExit as ended:
        if not communicator.is_stuck():
            raise
        communicator.end(ended.code if isinstance(ended.code, int) else int(ended.code is not None))


def _open_streams() -> None:
    """Put the null device in the place of streams that are closed: the next file that is opened would have their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # which is the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _alone(command: Callable[..., None]) -> typer.Typer:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command()(command)
    return alone


def _run(commands: typer.Typer) -> None:
    try:
        with preemption.heeded():
            code = commands(standalone_mode=False)
        if code == INTERRUPTED:  # which is what Typer makes of Ctrl-C
            print("stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(code)
    except preemption.Preempted as error:
        preemption.ignore()
        print(f"{error}; the same command goes on from here", file=sys.stderr)
        sys.exit(preemption.EXIT_CODE)
    except (Exception, Moved) as error:
        line = _usage(error) or extras.missing(error) or one_line(error)
        if line is None:
            traceback.print_exc()
            sys.exit(1)
        rank = launched_rank()
        print(f"imp: {f'rank {rank}: ' if rank else ''}{line}", file=sys.stderr)
        sys.exit(1 if isinstance(error, Failed) else 2)
    finally:
        mirror.wait()


def _usage(error: BaseException) -> str | None:
    """The line for a command line that could not be parsed, None for any other error."""
    if not hasattr(error, "format_message"):
        return None
    message, context = error.format_message(), getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # no command at all: the message is the help
        print(message)
        sys.exit(2)
    message = message.replace("\n", " ")
    return f"{message} (see `{context.command_path if context else 'imp'} --help`)"
