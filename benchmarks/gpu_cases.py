"""What `gpu.py` tries in TensorFlow, in a process beside it."""

import contextlib
import ctypes
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import numpy as np
import turns
from harness import Recipe

from lottery.bench import timing
from lottery.experiment.reading import resolve
from lottery.pruning import masks
from lottery.pruning.state import Arrays, State

if TYPE_CHECKING:
    from lottery.engine.loop import Trainer


class Seen(NamedTuple):
    """Whether it holds (None: there is only a figure, or nothing to try), what was seen, and its numbers."""

    holds: bool | None
    saw: str
    figures: dict[str, float] | None = None


# As their recipes have them, and where there is no GPU.
NETWORKS = {
    "lenet_300_100": ["data.size=28", "train.batch=60"],
    "resnet20": ["data.size=32", "train.batch=128"],
    "mobilenet_v2": ["model.alpha=1.0", "data.size=64", "train.batch=96"],
    "resnet9": ["data.size=32", "train.batch=512", "model.activation=gelu"],
    "wrn_22_2": ["data.size=32", "train.batch=128"],
    "resnext29_32x4d": ["data.size=32", "train.batch=128"],
    "resnet50": ["data.size=64", "train.batch=64"],
    "conv6": ["data.size=32", "train.batch=60"],
}
SMALL = {
    "lenet_300_100": ["data.size=8", "train.batch=16"],
    "resnet20": ["model.width=4", "data.size=8", "train.batch=8"],
    "mobilenet_v2": ["model.alpha=0.1", "data.size=32", "train.batch=8"],
    "resnet9": ["model.width=4", "data.size=16", "train.batch=8", "model.activation=gelu"],
}
# How far a first step may be from that of a CPU in float32: its update (the L2 norm of the difference, as a share), its loss.
TOLERANCES = {"float32": (1e-3, 1e-4), "tf32": (0.05, 0.01), "mixed_bfloat16": (0.5, 0.02), "mixed_float16": (0.2, 0.01)}
SAME = TOLERANCES["float32"][0]
DATA = 32  # batches of noise
OVERFLOWS = 20  # of float16, at most, until the loss scale fits


def recipe_of(network: str, small: bool, *values: str) -> Recipe:
    """SGD at a constant rate, at which one step is the gradient."""
    constant = (
        "train.warmup=0",
        "train.schedule=constant",
        "train.learning_rate=1e-3",
        "train.weight_decay=0.0",
        "data.crop=0",
    )
    return resolve({}, ["model.name=" + network, *constant, *(SMALL if small else NETWORKS)[network], *values], "gpu.py")


def made(recipe: Recipe, names: Sequence[str] = ()) -> "Trainer":
    """As `made_in`, on `DATA` batches in memory."""
    with tempfile.TemporaryDirectory() as place:
        return made_in(Path(place), recipe, DATA * recipe.train.batch, names)


def made_in(folder: Path, recipe: Recipe, images: int, names: Sequence[str] = ()) -> "Trainer":
    """The network of a recipe under a random mask of half of each kernel, on so many images of noise in `folder`. TensorFlow is
    set up for it, unless it has devices of these `names` already."""
    import noise

    from lottery.engine import assembly, devices
    from lottery.engine.loop import Trainer

    devices.forget()
    names = names or devices.set_up_tensorflow(recipe.train)
    manifest = noise.make_noise(folder, images, recipe.records())
    feed = partial(assembly.make_feed, folder, manifest, recipe.data, devices=names)
    trainer = Trainer(recipe, names, feed, partial(masks.in_scope, scope="kernels"))
    rng = np.random.default_rng(0)
    trainer.load(trainer.state(0), {path: rng.random(kept.shape) < 0.5 for path, kept in trainer.masks.items()})
    return trainer


def machine() -> Seen:
    """Devices and versions."""
    import tensorflow as tf

    from lottery.base import environment, gpus

    about, build = environment.describe(), tf.sysconfig.get_build_info()
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    cudnn = None
    with contextlib.suppress(OSError):
        cudnn = ctypes.CDLL("libcudnn.so.9").cudnnGetVersion()
    said = [
        f"{', '.join(str(one.get('device_name')) + ' ' + str(one.get('compute_capability')) for one in details) or 'no GPU'}",
        f"driver {gpus.driver() or 'none'}",
        f"built for CUDA {build.get('cuda_version')} and cuDNN {build.get('cudnn_version')}; cuDNN here: {cudnn}",
        f"{about['processor']}, {about['cores']} cores; Python {about['python']}",
        ", ".join(f"{name} {version}" for name, version in about["packages"].items()),
    ]
    return Seen(len(details) == len(about["gpus"]) if about["gpus"] else None, "; ".join(said))


def products(small: bool) -> Seen:
    """The peak of the device in matrix products."""
    import limits
    import tensorflow as tf

    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    found = limits.products(device, 1, 128 if small else None, repeats=3)
    tera = {dtype: statistics.median(rates) / 1000 for dtype, rates in found.items()}
    return Seen(None, ", ".join(f"{dtype} {rate:,.3g} TFLOP/s" for dtype, rate in tera.items()), tera)


def reference(network: str, small: bool, folder: Path) -> Seen:
    """The first step of a network on a CPU in float32, for `step` to be held against."""
    trainer = made(recipe_of(network, small))
    trainer.load(trainer.begun(0), trainer.mask())
    start = trainer.state(0)
    loss = trainer.advance(0, 1, 0)[0, 0]
    groups = {"weights": start.weights, "statistics": start.statistics, "after": trainer.state(1).weights}
    arrays = {f"{group}:{path}": array for group, one in groups.items() for path, array in one.items()}
    np.savez(folder / f"{network}.npz", loss=loss, **arrays)
    return Seen(True, f"loss {loss:.6f}", {"loss": loss})


def step(network: str, small: bool, folder: Path, precision: str = "float32", xla: str = "auto") -> Seen:
    """A first step from the reference's weights: finite, as far from the reference as the precision may be, pruned weights and
    slots exactly 0; then how long compiling and a step take."""
    if not (folder / f"{network}.npz").exists():
        return Seen(False, "there is no step of the CPU's to compare it with")
    with np.load(folder / f"{network}.npz") as saved:
        groups: dict[str, Arrays] = {"weights": {}, "statistics": {}, "after": {}}
        for name in saved.files:
            group, _, path = name.partition(":")
            if path:
                groups[group][path] = saved[name]
        expected = float(saved["loss"])
    trainer = made(recipe_of(network, small, f"train.precision={precision}", f"train.xla={xla}"))
    began = time.perf_counter()
    trainer.load(State(0, groups["weights"], groups["statistics"], {}), trainer.mask())
    figures = trainer.advance(0, 1, 0)
    for _ in range(OVERFLOWS):  # the first loss scales of float16 may be too large: no weight moves, the scale halves
        if not figures[0, 2]:
            break
        figures = trainer.advance(0, 1, 0)
    compiling, after = time.perf_counter() - began, trainer.state(1)
    error, off = _apart(groups["weights"], after.weights, groups["after"]), abs(figures[0, 0] / expected - 1)
    finite = bool(np.isfinite(figures).all() and all(np.isfinite(array).all() for array in after.arrays()))
    close = error <= TOLERANCES[precision][0] and off <= TOLERANCES[precision][1]
    zeros = pruned_is_zero(trainer, after)
    seconds = seconds_of_step(trainer)
    rate = trainer.train.batch / seconds
    saw = (
        f"update {error:.1e} and loss {off:.1e} from the CPU's (may be {TOLERANCES[precision][0]:g} and "
        f"{TOLERANCES[precision][1]:g}), {'finite' if finite else 'NOT finite'}, pruned {'exactly 0' if zeros else 'NOT 0'}; "
        f"XLA {'on' if trainer.xla else 'off'}, {compiling:.1f} s to the first step, {1000 * seconds:.2f} ms a step, "
        f"{rate:,.0f} images/s"
    )
    return Seen(finite and zeros and close, saw, {"error": error, "ms": 1000 * seconds})


def seconds_of_step(trainer: "Trainer") -> float:
    """The median of three runs."""
    import loops

    take = loops.stepping(trainer)
    count = turns.lasting(take, turns.RUN_SECONDS, most=trainer.steps_per_epoch)
    return statistics.median(turns.runs(partial(take, count), 3)) / count


def pruned_is_zero(trainer: "Trainer", state: State) -> bool:
    """Whether weights and slots are exactly 0.0 where the mask prunes."""
    from lottery.engine.optimizers import weight_of

    mask = trainer.mask()
    owned = state.weights | state.optimizer
    return all(not owned[name][~mask[weight_of(name)]].any() for name in owned if weight_of(name) in mask)


def _apart(before: Arrays, after: Arrays, expected: Arrays) -> float:
    """How far the change from `before` to `after` is from that to `expected`: norm of the difference by norm of the change."""
    pairs = [(after[path] - expected[path], expected[path] - before[path]) for path in expected]
    off, whole = (
        np.sqrt(sum(float(np.square(one, dtype=np.float64).sum()) for one in group)) for group in zip(*pairs, strict=True)
    )
    return float(off / whole)


def one_replica(small: bool) -> Seen:
    """A network under MirroredStrategy with one replica, beside the same without a strategy."""
    import tensorflow as tf

    from lottery.engine import devices

    recipe = recipe_of("lenet_300_100" if small else "resnet20", small)
    plain = made(recipe)
    start, mask = plain.begun(0), plain.mask()
    with mock.patch.object(devices, "strategy", lambda names: tf.distribute.MirroredStrategy(list(names))):
        mirrored = made(recipe)
    ends = [_after(trainer, start, mask) for trainer in (plain, mirrored)]
    error = _apart(start.weights, ends[1].weights, ends[0].weights)
    return Seen(error <= SAME, f"after 3 steps {error:.1e} from the same without a strategy", {"error": error})


def two_devices(small: bool) -> Seen:
    """Two logical devices on one GPU (or CPU), beside one."""
    import tensorflow as tf

    recipe = recipe_of("lenet_300_100", small)  # of no BatchNorm, whose statistics are those of each device's part
    kind = "GPU" if (gpus := tf.config.list_physical_devices("GPU")) else "CPU"
    half = tf.config.LogicalDeviceConfiguration(memory_limit=4096 if gpus else None)
    tf.config.set_logical_device_configuration((gpus or tf.config.list_physical_devices("CPU"))[0], [half] * 2)
    two = made(recipe, [f"{kind}:0", f"{kind}:1"])
    start, mask = two.begun(0), two.mask()
    end = _after(two, start, mask)
    alone = _after(made(recipe, [f"{kind}:0"]), start, mask)
    error = _apart(start.weights, end.weights, alone.weights)
    good = error <= SAME and pruned_is_zero(two, end)
    return Seen(
        good, f"{two.replicas} replicas on two logical {kind}s: after 3 steps {error:.1e} from one device", {"error": error}
    )


def _after(trainer: "Trainer", start: State, mask: dict[str, np.ndarray], steps: int = 3) -> State:
    trainer.load(start, mask)
    trainer.advance(0, steps, 0)
    return trainer.state(steps)


def nccl() -> Seen:
    """A sum over all GPUs by NCCL."""
    import tensorflow as tf
    from tensorflow.python.ops import nccl_ops

    count = len(tf.config.list_physical_devices("GPU"))
    if not count:
        return Seen(None, "no GPU: not tried")

    @tf.function
    def total() -> list[tf.Tensor]:
        parts = []
        for index in range(count):
            with tf.device(f"GPU:{index}"):
                parts.append(tf.fill([1024], float(index + 1)))
        return nccl_ops.all_sum(parts)

    sums = [float(one.numpy()[0]) for one in total()]
    return Seen(sums == [count * (count + 1) / 2] * count, f"{count} GPUs, sums {sums}")


def training(small: bool, folder: Path, again: bool) -> Seen:
    """A training of some steps, and how far it is from the same in another process."""
    trainer = made(recipe_of("lenet_300_100" if small else "mobilenet_v2", small))
    end = _after(trainer, trainer.begun(0), trainer.mask(), 5 if small else 200)
    path = folder / "training.npz"
    if not again:
        np.savez(path, **end.weights)
        return Seen(None, f"{len(end.weights)} arrays kept")
    with np.load(path) as first:
        return _compared({name: first[name] for name in first.files}, end.weights)


def _compared(first: Arrays, second: Arrays) -> Seen:
    unequal = [name for name in first if not np.array_equal(first[name], second[name])]
    most = max((float(np.abs(first[name] - second[name]).max() / np.abs(first[name]).max()) for name in unequal), default=0.0)
    saw = (
        f"{len(first) - len(unequal)} of {len(first)} arrays have equal bits; the others differ by {most:.1e} of their largest"
    )
    return Seen(not unequal, saw, {"unequal": len(unequal), "difference": most})


def feeding(small: bool, kind: str) -> Seen:
    """Training on images in memory or streamed: images a second, the share of time spent waiting for them, NVML's figures."""
    import loops

    from lottery.base.gpus import Gauges

    recipe = recipe_of("mobilenet_v2", small, f"data.feed={kind}", "train.precision=mixed_bfloat16")
    with tempfile.TemporaryDirectory() as place:
        trainer = made_in(Path(place), recipe, 64 if small else 20_000)
        take = loops.stepping(trainer)
        take(1)
        gauges, seconds = Gauges(trainer.gpus), 0.2 if small else 4.0
        gauges.read()
        trainer.waited, began, steps = 0.0, time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            take(trainer.steps_per_epoch)
            steps += trainer.steps_per_epoch
        spent = time.perf_counter() - began
        seen = gauges.read()
        gauges.close()
    rate, share = steps * recipe.train.batch / spent, trainer.waited / spent
    used = seen.get("gpu_utilisation")
    told = "NVML says nothing" if used is None else f"GPU in use {used:.0%}, {seen['gpu_memory_bytes'] / 2**30:.1f} GiB"
    return Seen(None, f"{rate:,.0f} images/s, waiting for input {share:.1%}; {told}", {"images_per_s": rate, "waited": share})


def beside_keras(small: bool, network: str) -> Seen:
    """Our loop beside Keras's `fit`, as `step.py` has it."""
    from step import time_contenders

    recipe = recipe_of(network, small)
    images, seconds = (2 * recipe.train.batch, 0.05) if small else (64 * recipe.train.batch, 0.5)
    found = time_contenders(recipe, images, seconds, repeats=3)
    saw = (
        f"{found['images_per_s']:,.0f} images/s, {found['keras_ratio']:.2f} times Keras fit's; "
        f"mask {found['mask_overhead']:+.1%}, noise {found['control_overhead']:+.1%}; "
        f"{found['peak_share']:.0%} of a float32 product; {found['peak_memory_bytes'] / 2**20:,.0f} MiB"
    )
    return Seen(None, saw, found)


def bundle(small: bool, network: str, tickets: int) -> Seen:
    """Steps of so many tickets trained as one network."""
    import loops

    from lottery.base.capacity import Allocation
    from lottery.engine.bundle import sizes

    trainer = made(recipe_of(network, small))
    needed, free = tickets * sizes.bytes_of_each(trainer), sizes.free_bytes(trainer, Allocation((), 1))
    if needed > free:
        return Seen(None, f"does not fit: about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} free")
    began = time.perf_counter()
    with timing.peak_memory(trainer.names[0]) as taken:
        take = loops.stepping(trainer) if tickets == 1 else sizes.stepping(trainer, tickets)
        count = turns.lasting(take, turns.RUN_SECONDS, most=trainer.steps_per_epoch)
        compiling = time.perf_counter() - began
        each = statistics.median(turns.runs(partial(take, count), 3)) / count / tickets
        memory = taken()
    hourly = 3600 / each / 50_000
    saw = f"{1000 * each:.3f} ms a ticket's step, {hourly:,.1f} tickets of 50,000 steps an hour, {memory / 2**20:,.0f} MiB"
    return Seen(None, f"{saw}, {compiling:.0f} s until it ran", {"ms": 1000 * each, "per_hour": hourly, "bytes": memory})


def automatic(small: bool, network: str) -> Seen:
    """The size that `--bundle auto` takes."""
    from lottery.base.capacity import Allocation
    from lottery.engine.bundle import sizes

    with mock.patch.multiple(sizes, CALL_SECONDS=0.02 if small else 0.5, SIZES=(2, 4) if small else sizes.SIZES):
        seconds = sizes.measure(made(recipe_of(network, small)), Allocation((), 1))
    best = min(seconds, key=lambda size: seconds[size])
    told = ", ".join(f"{size}: {1000 * one:.3f} ms" for size, one in seconds.items())
    return Seen(None, f"takes {best}, {seconds[1] / seconds[best]:.1f} times as fast as one at a time ({told})", {"size": best})


def epoch_of_resnet9(small: bool) -> Seen:
    """How long an epoch of 50,000 images takes."""
    trainer = made(recipe_of("resnet9", small, "train.precision=mixed_bfloat16"))
    seconds = seconds_of_step(trainer)
    epoch = seconds * 50_000 / trainer.train.batch
    return Seen(None, f"{1000 * seconds:.2f} ms a step, {epoch:,.2f} s an epoch of 50,000 images of noise", {"epoch_s": epoch})
