"""The command that shows how large weights are: explore."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from lottery.commands.options import JsonOption, RunOption, alone, opened, print_json
from lottery.results.tables import print_table

if TYPE_CHECKING:
    from lottery.results.explore import Course


def explore(
    run: RunOption = None,
    at: Annotated[str, typer.Option(metavar="POINT", help="The dense network at a snapshot: 0, 34it, 1ep or end.")] = "end",
    ticket: Annotated[
        str | None, typer.Option(metavar="NAME", help="A ticket instead of the dense network, such as q90-step-000034.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="ticket, or a control: reinit, shuffle, random, extended.", show_default="ticket")
    ] = None,
    replicate: Annotated[int, typer.Option(min=1, help="Which replicate.")] = 1,
    scope: Annotated[
        str | None, typer.Option(help="kernels, pointwise or all, without exclusions; default: what the recipe prunes.")
    ] = None,
    quantiles: Annotated[
        str | None, typer.Option(metavar="GRID", help="Quantiles of |w| to show, in per cent.", show_default="50,75,90,99")
    ] = None,
    in_all: Annotated[bool, typer.Option("--in-all", help="Only the figures of all variables together.")] = False,
    snapshots: Annotated[bool, typer.Option("--snapshots", help="How the norms change during the dense training.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how large the weights are: count, min, max, mean, norm and quantiles of |w|, by variable."""
    from data_prep.errors import InputError
    from lottery.pruning.masks import SCOPES
    from lottery.results import explore

    alone()
    if scope is not None and scope not in SCOPES:
        raise InputError(f"--scope {scope}: write {', '.join(SCOPES)}")
    chosen = SCOPES[scope] if scope else None
    source = opened(run, must_exist=True)
    if snapshots:
        if ticket or variant or quantiles or at != "end":
            raise InputError(
                "--snapshots shows the dense network at all its snapshots: leave out --at, --ticket, --variant and --quantiles"
            )
        _show_course(explore.course(source, replicate, chosen), in_all, as_json)
        return
    if variant and not ticket:
        raise InputError(f"--variant {variant} needs a ticket: name it with --ticket")
    given = {"variant": variant, "quantiles": quantiles}
    wanted = {name: value for name, value in given.items() if value is not None}
    found = explore.explore(source, at, ticket, replicate=replicate, scope=chosen, **wanted)
    if in_all:
        found = dataclasses.replace(found, norms=found.norms[-1:])
    if as_json:
        print_json(found.as_json())
        return
    print_table(found.title, found.headings, map(found.cells, found.norms))


def _show_course(course: "Course", in_all: bool, as_json: bool) -> None:
    if as_json:
        print_json(course.as_json(in_all))
        return
    if not in_all:
        print_table(course.title, course.HEADINGS, course.by_variable())
    print_table(f"{course.title}, in all", course.IN_ALL_HEADINGS, course.in_all())
