"""How functions with objects of options become commands."""

import pytest
import typer
from typer.testing import CliRunner

from lottery.base.errors import InputError
from lottery.commands import options
from lottery.executors.workload import Execution, Part


@pytest.fixture
def line():
    """A function that parses a command line, and what the command got."""
    got = {}

    def trains(workers: options.PartOptions, tickets: options.SelectionOptions, often: int = 1) -> None:
        got.update(execution=workers.execution(), selection=tickets.selection(lambda: ["others"]), often=often)

    def parse(*words):
        app = typer.Typer()
        app.command()(options.command(trains))
        done = CliRunner().invoke(app, words)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return got if not done.exit_code else done.output

    return parse


def test_an_object_of_options_has_what_was_typed_and_defaults_for_the_rest(line):
    got = line("--ranks", "3", "--part", "2/5", "--rounds", "4", "--often", "7")

    assert got["execution"] == Execution(ranks=3, part=Part(2, 5))
    assert (got["selection"].families, got["selection"].rounds, got["often"]) == (("others",), 4, 7)
    assert line("--bundle", "auto")["execution"] == Execution()
    assert line("--bundle", "8", "--family", "lr")["execution"].bundle == 8
    assert got["selection"].families == ("lr",)


@pytest.mark.parametrize(("option", "value"), [("--part", "6/5"), ("--bundle", "many")])
def test_a_value_that_cannot_be_read_is_one_line(line, option, value):
    with pytest.raises(InputError, match=value):
        line(option, value)
