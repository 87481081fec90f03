"""How far the numbers of a ticket in a bundle are from those of the same ticket alone.

    python benchmarks/bundle_bits.py [NETWORK ...]

Prints a table (markdown): for each network, in float64 and float32, the greatest difference of a weight after 1 and after 100
steps, in units in the last place (ULP) of the largest weight of its variable; `0` where all bits are equal. Beside it stands
the same of a ticket alone whose first weights were moved by one ULP: what rounding grows to in so many steps by itself.
About half an hour on two cores.
"""

import sys

import numpy as np

from lottery.engine.start import start_tensorflow

start_tensorflow()

import loops  # noqa: E402

from lottery.engine import devices  # noqa: E402
from lottery.engine.bundle.members import BundledTrainer  # noqa: E402
from lottery.engine.loop import Diverged, Trainer  # noqa: E402
from lottery.experiment import reading  # noqa: E402
from lottery.pruning.state import State  # noqa: E402

NETWORKS = (
    *("lenet_300_100", "conv2", "conv4", "conv6", "cifar_tutorial", "mobilenet_v2", "resnet20", "resnet56", "resnet9"),
    *("resnet50", "resnext29_32x4d", "wrn_22_2"),
)
STEPS = (1, 100)
TICKETS = 3
SETTINGS = ("data.size=32", "train.batch=8", "train.warmup=0", "train.schedule=constant", "train.learning_rate=0.01")


def states(trainer: Trainer, start: State) -> list[State]:
    """A ticket after so many `STEPS`, under half of its weights."""
    rng = np.random.default_rng(1)
    trainer.load(start, {path: rng.random(kept.shape) < 0.5 for path, kept in trainer.mask().items()})
    found = []
    for first, last in zip((0, *STEPS), STEPS, strict=False):
        trainer.advance(first, last, order_seed=0)
        found.append(trainer.state(last))
    return found


def moved(start: State, dtype: str) -> State:
    rng = np.random.default_rng(2)
    exact = {path: array.astype(dtype) for path, array in start.weights.items()}
    weights = {path: np.nextafter(array, rng.choice([-9, 9], array.shape).astype(dtype)) for path, array in exact.items()}
    return State(start.step, weights, start.statistics, {})


def difference(one: State, other: State) -> str:
    ulps = [
        np.abs(array - other.weights[path]).max() / np.spacing(np.abs(array).max())
        for path, array in one.weights.items()
        if array.tobytes() != other.weights[path].tobytes()
    ]
    return f"{max(ulps):.2g}" if ulps else "0"


def row(name: str, precision: str) -> str:
    recipe = reading.resolve({}, [*SETTINGS, f"model.name={name}", f"train.precision={precision}"], "this script")
    names = devices.set_up_tensorflow(recipe.train)
    trainer = loops.on_noise(recipe, names, images=101 * recipe.train.batch)(masked=True)
    starts = [trainer.drawn(seed) for seed in range(TICKETS)]
    try:
        alone, shaken = states(trainer, starts[0]), states(trainer, moved(starts[0], trainer.model.variable_dtype))
        work = {place: lambda member, start=start: states(member, start) for place, start in enumerate(starts)}
        bundled = BundledTrainer(trainer, TICKETS).run(work)[0]
    except Diverged as error:
        return f"| {name} | {precision} | {error} |"
    cells = [difference(*pair) for found in (bundled, shaken) for pair in zip(alone, found, strict=True)]
    return f"| {name} | {precision} | {' | '.join(cells)} |"


def main() -> None:
    print("| network | precision | bundle, 1 step | bundle, 100 steps | 1 ULP apart, 1 step | 1 ULP apart, 100 steps |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in sys.argv[1:] or NETWORKS:
        for precision in ("float64", "float32"):
            print(row(name, precision), flush=True)
            devices.forget()


main()
