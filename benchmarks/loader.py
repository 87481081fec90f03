"""How long an epoch waits for its examples, loaded by workers of tf.data and by our feeds: `python benchmarks/loader.py`."""

import tempfile
import time
from pathlib import Path

from lottery import cli
from lottery.base.progress import count_of
from lottery.bench import loader as ours
from lottery.bench.harness import MOBILENET, Bench, Recipe, measurement


@measurement(repeats=5, network=MOBILENET)
def loader(bench: Bench, images: ours.ImagesOption = None) -> None:
    """An epoch with images or texts loaded by 0, 1, 2, 4, 8 workers of tf.data, streamed, and from memory: where it waits."""
    recipe, count = ours.epoch_of(bench, images)
    how = {"recipe": recipe, "images": count, "repeats": 1 + bench.repeats}
    for workers in (2,) if bench.quick else (0, 1, 2, 4, 8):
        name = f"tf.data, {count_of(workers, 'worker')}"
        with bench.row(name):
            ours.add_row(bench, name, bench.call(time_epochs, workers=workers, **how))
    for feed in ours.FEEDS:
        with bench.row(feed):
            ours.add_row(bench, feed, bench.call(ours.time_epochs, feed=feed, **how))
    ours.sheet(bench, recipe, count, "0 workers: images are read when they are asked for")


def time_epochs(recipe: Recipe, workers: int, images: int, repeats: int) -> ours.Epochs:
    """As `lottery.bench.loader.time_epochs`, with examples loaded by so many workers of tf.data."""
    import tfdata

    from lottery.engine import devices

    devices.set_up_tensorflow(recipe.train)
    epochs = []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "examples.tfrecord")
        tfdata.write(path, recipe.records(), images)
        step = tfdata.plain_step(recipe)
        batches = tfdata.one_by_one(path, tfdata.parser(recipe), recipe.train.batch, workers)
        for _ in range(repeats):
            began = asked = time.perf_counter()
            waited = 0.0
            for batch in batches:
                waited += time.perf_counter() - asked
                step(batch).numpy()
                asked = time.perf_counter()
            waited += time.perf_counter() - asked
            epochs.append((waited, time.perf_counter() - began))
    return epochs


if __name__ == "__main__":
    cli.main(loader)
