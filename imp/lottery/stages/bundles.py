"""How many networks a process trains in one compiled step where nobody says it: `--bundle auto`."""

import dataclasses
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from lottery.base import files, gpus
from lottery.base.capacity import Allocation
from lottery.base.errors import Failed
from lottery.base.progress import Reporter
from lottery.engine.start import start_tensorflow
from lottery.executors.allocation import resources_here, show_gpus
from lottery.rundir.run import Run


def fastest(run: Run, per_gpu: int | None, reporter: Reporter) -> int:
    """The size of the bundles that train fastest on the first GPU of this process, which `per_gpu` ranks share. It is measured
    once, and kept in the run. Without a GPU it is 1, because ranks are faster there (docs/performance.md).
    Raises Failed where measuring ends its process."""
    own = resources_here()
    if not own.gpus:
        return 1
    gpu = gpus.listed().get(own.gpus[0], own.gpus[0])
    known = files.read_json(run.bundle) if run.bundle.exists() else {}
    if (known.get("gpu"), known.get("per_gpu")) != (gpu, per_gpu or 1):
        reporter.say("measuring how many networks train best in one step: --bundle T says it without")
        allocation = Allocation(own.gpus[:1], len(own.cores), on_gpu=per_gpu or 1)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                seconds = pool.submit(measure, run, allocation).result()
            except BrokenProcessPool:
                raise Failed("the process that measured for --bundle auto died: name a size, such as --bundle 1") from None
        size = min(seconds, key=lambda size: seconds[size])
        known = {"gpu": gpu, "per_gpu": per_gpu or 1, "size": size, "seconds_of_step": seconds}
        files.write_json(run.bundle, known)
        reporter.say(f"bundles of {size}: {seconds[1] / seconds[size]:.1f} times as fast as one network at a time")
    return int(known["size"])


def measure(run: Run, allocation: Allocation) -> dict[int, float]:
    """Seconds that a step of each network of `run` takes, by the size of the bundle."""
    show_gpus(allocation)
    start_tensorflow()
    from lottery.engine import assembly
    from lottery.engine.bundle import sizes

    still = dataclasses.replace(run, recipe=sizes.still(run.recipe))
    return sizes.measure(assembly.make_trainer(still, Reporter(quiet=True), run.recipe.covers, allocation), allocation)
