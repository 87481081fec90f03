"""The entry point of the command line: the commands in the order of `imp --help`, and what their endings mean."""

import signal
import sys
import traceback

import typer

from lottery.bench.commands import app as bench
from lottery.commands import cluster, examining, exploring, preparing, reading, stages, sweeping

INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find lottery tickets: train, prune by magnitude, rewind, retrain, compare.",
)
app.command()(preparing.prepare)
app.command()(preparing.verify)
app.command()(stages.train)
app.command()(stages.thresholds)
app.command()(stages.retrain)
app.command()(stages.rounds)
app.command()(reading.report)
app.command()(exploring.explore)
app.command()(reading.compare)
app.command()(reading.export)
app.command()(reading.status)
app.command(name="run")(stages.run_all)
app.command()(examining.doctor)
app.command()(sweeping.sweep)
app.command()(cluster.slurm)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line: exit code 2 and one line for what the user can mend, 1 for what failed, 130 for Ctrl-C, 75 for
    SIGTERM and SIGUSR1."""
    from data_prep.errors import Failed, Moved, one_line
    from lottery import preemption, tracking
    from lottery.fanout.launcher import launched_rank

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
    except (Exception, Moved) as error:
        line = _usage(error) or one_line(error)
        if line is None:
            traceback.print_exc()
            sys.exit(1)
        rank = launched_rank()
        print(f"imp: {f'rank {rank}: ' if rank else ''}{line}", file=sys.stderr)
        sys.exit(1 if isinstance(error, Failed) else 2)
    finally:
        tracking.wait()


def _usage(error: BaseException) -> str | None:
    """The line for a command line that could not be parsed, None for any other error."""
    context = getattr(error, "ctx", None)
    if not hasattr(error, "format_message"):
        return None
    message = error.format_message().replace("\n", " ")
    if not message:  # no command at all: the help has been printed
        sys.exit(2)
    return f"{message} (see `{context.command_path if context else 'imp'} --help`)"
