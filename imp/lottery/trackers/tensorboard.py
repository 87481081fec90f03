"""TensorBoard: `tensorboard --logdir runs/NAME/tensorboard` shows the networks of a run beside each other."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import to_json

from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.trackers.mirror import Row

if TYPE_CHECKING:
    from lottery.experiment.recipe import Recipe

FOLDER = "tensorboard"  # in the run directory; in it, each network has the folder of its own name


class TensorBoard:
    """Event files by TensorFlow's own writer; the package tensorboard shows them, and is not needed to write them."""

    def __init__(self, recipe: "Recipe", folder: Path, argument: str):
        if argument:
            raise InputError(f"track.trackers: {f'tensorboard:{argument}'!r} is not known: write tensorboard")
        self.recipe, self.folder = recipe, folder

    def open(self, network: Path, record: Row) -> "EventSink":
        """Takes the place of what an earlier process wrote of this network: all its rows come again."""
        events = self.folder / FOLDER / network.relative_to(self.folder)
        for written in events.glob("events.out.tfevents.*"):
            written.unlink()
        sink = EventSink(events)
        sink.write_text("recipe", f"```toml\n{reading.to_toml(self.recipe)}```")
        sink.write_text("network", f"```json\n{to_json(dict(record), indent=2).decode()}\n```")
        return sink

    def publish(self, report: Path) -> None:
        """The report has a page of its own."""


class EventSink:
    """The event file of one network: its figures by step as `curves/...`, and those that count in the end as `final/...`: two
    groups of charts, because TensorBoard shows no more than two unfolded."""

    def __init__(self, folder: Path):
        import tensorflow as tf

        self.tf, self.step = tf, 0
        self.writer = tf.summary.create_file_writer(str(folder))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.step = step
        self._write_scalars("curves", figures)
        self.writer.flush()

    def finish(self, status: str, final: Mapping[str, float]) -> None:
        self.write_text("status", status)
        self._write_scalars("final", final)
        self.writer.close()

    def write_text(self, name: str, markdown: str) -> None:
        self._write(name, markdown, "text", "DATA_CLASS_TENSOR")

    def _write_scalars(self, group: str, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._write(f"{group}/{name}", float(value), "scalars", "DATA_CLASS_SCALAR")

    def _write(self, name: str, value: float | str, plugin: str, kind: str) -> None:
        """What tf.summary.scalar and tf.summary.text write, which raise where the package tensorboard is not installed."""
        metadata = self.tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": plugin}, data_class=kind)
        with self.tf.device("CPU:0"), self.writer.as_default():
            self.tf.summary.write(name, value, self.step, metadata)
