"""`imp bench inference`: exported tickets beside the dense network, in TensorFlow Lite."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.bench import timing
from lottery.bench.harness import Bench, measurement
from lottery.bench.sheet import Column, bars, duration
from lottery.commands.options import RunOption, opened
from lottery.progress import count_of

KINDS = {"tflite": "float32", "tflite_dynamic": "8-bit kernels"}
COLUMNS = (
    Column("name", ""),
    *duration("us", "µs an image", ",.1f"),
    Column("memory_mb", "memory, MB", ",.1f"),
    Column("file_kb", "file, kB", ",.1f"),
    Column("gzip_kb", "after gzip, kB", ",.1f"),
)


@measurement(repeats=7)
def inference(
    bench: Bench,
    run: RunOption = None,
    ticket: Annotated[
        list[str] | None, typer.Option(help="Such as q90-step-000034; repeatable.", show_default="the first and the last")
    ] = None,
    replicate: Annotated[int, typer.Option(min=1, help="Of which replicate.")] = 1,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.", show_default="1, 2, 4")] = None,
) -> None:
    """Exported tickets beside the dense network: microseconds, memory, size."""
    from lottery.results import lookup
    from lottery.stages import export

    target = opened(run, must_exist=True)
    place, manifest = target.replicate(replicate), target.manifest()
    if not ticket:
        trained = [name for name in lookup.finished(place) if " " not in name and name != lookup.DENSE]
        ticket = [*trained[:1], *trained[-1:]]
    states = {name: lookup.trained(target, place, name)[1] for name in (lookup.DENSE, *ticket)}
    network = {"model": target.recipe.model, "shape": manifest.shape, "classes": len(manifest.classes)}
    height, width, _ = manifest.shape
    with tempfile.TemporaryDirectory() as folder:
        for title, name, to in [(f"{name}, {kind}", name, to) for name in states for to, kind in KINDS.items()]:
            with bench.row(title):
                path = Path(folder, f"{len(bench.rows)}.tflite")
                content = bench.shared.call(exported, to=to, state=states[name], **network)
                path.write_bytes(content)
                sizes = {"file_kb": len(content) / 1e3, "gzip_kb": export.gzipped(content) / 1e3}
                for count in threads or ([1] if bench.quick else [1, 2, 4]):
                    row = bench.call(measure_file, path=path, threads=count, repeats=bench.repeats)
                    bench.rows.append({"name": f"{title}, {count_of(count, 'thread')}", "threads": count, **row, **sizes})
    bench.sheet(
        f"Inference by TensorFlow Lite: {target.recipe.model.name}, {height}x{width}, an image at a time",
        COLUMNS,
        bars(bench.rows, "name", "us", "µs an image", spread=True),
        "zeros are computed with like any other weight: a ticket is smaller after gzip, not faster",
        f"{bench.apart}; memory: by how much it grew",
    )


def exported(to: str, **network: Any) -> bytes:
    """A network as a file in the format `to`: see `formats.make`."""
    from lottery.engine import formats

    return formats.make(to, **network).content


def measure_file(path: Path, threads: int, repeats: int) -> dict[str, float]:
    """Microseconds an image, one at a time, and by how many MB the process grew at most."""
    import warnings

    import numpy as np
    import tensorflow as tf

    with timing.peak_memory() as peak:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is to move to a package of its own
            interpreter = tf.lite.Interpreter(model_path=str(path), num_threads=threads)
        interpreter.allocate_tensors()
        inputs = interpreter.get_input_details()[0]
        image = np.random.default_rng(0).uniform(-1, 1, inputs["shape"]).astype(np.float32)

        def answer() -> None:
            interpreter.set_tensor(inputs["index"], image)
            interpreter.invoke()

        walls = timing.runs(answer, repeats)
        return {**timing.spread("us", [1e6 * wall for wall in walls]), "memory_mb": peak() / 1e6}
