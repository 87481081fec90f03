"""A step with activations held and with them computed twice: its time and memory: `python benchmarks/remat.py`."""

from typing import Annotated

import precision
import typer
from harness import MOBILENET, Bench, measurement, with_training

from lottery import cli
from lottery.base import capacity
from lottery.bench.process import TooLarge


@measurement(repeats=7, network=MOBILENET)
def remat(
    bench: Bench,
    largest: Annotated[
        int | None, typer.Option(min=1, help="The batch to begin with in search of the largest.", show_default="4096")
    ] = None,
    memory: Annotated[float, typer.Option(min=0, help="GB that a training may take on CPUs; 0: half of what is free.")] = 0,
) -> None:
    """A step with activations held and with them computed twice, in the same batch and each in its own largest."""
    recipe = bench.recipe()
    limit = int(memory * 1e9) or capacity.host_budget(0)
    for twice, name in ((False, "activations held"), (True, "computed twice")):
        variant = with_training(recipe, remat=twice)
        with bench.row(name):
            bench.rows.append(precision.row(bench, name, variant, limit_bytes=limit))
        name = f"{name}, largest batch"
        batch = bench.pick(largest, 4096, 2 * recipe.train.batch)
        with bench.row(name):
            while batch > recipe.train.batch:
                try:  # in a process of its own, because one that takes too much is ended
                    bench.rows.append(
                        precision.row(bench, name, with_training(variant, batch=batch), limit_bytes=limit, alone=True)
                    )
                    break
                except TooLarge as error:
                    bench.reporter.say(f"{name}: batch {batch} does not fit ({error}), trying half of it")
                    batch //= 2
    precision.sheet(bench, "Rematerialisation", recipe)


if __name__ == "__main__":
    cli.main(remat)
