"""Weights & Biases: one run per network, in a group per run directory."""

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lottery.base import files
from lottery.base.errors import InputError
from lottery.trackers.mirror import FINISH_SECONDS, Row

if TYPE_CHECKING:
    from lottery.experiment.recipe import Recipe

ID = ".wandb-id"  # the file in a network's folder that says which W&B run is its own
INIT_SECONDS = 20


class WandB:
    """`wandb`, or `wandb:offline`, which writes to the run directory and calls nobody."""

    def __init__(self, recipe: "Recipe", folder: Path, argument: str):
        if argument not in ("", "online", "offline"):
            raise InputError(f"track.trackers: {f'wandb:{argument}'!r} is not known: write wandb or wandb:offline")
        self.recipe, self.folder, self.offline = recipe, folder, argument == "offline"

    def open(self, network: Path, record: Row) -> "WandBSink":
        return WandBSink(self._start(network, record))

    def publish(self, report: Path) -> None:
        """Keep the report as an artifact of a W&B run beside those of the networks."""
        import wandb

        run = self._start(report, {})
        artifact = wandb.Artifact(f"{self.folder.resolve().name}-report", type="report")
        for path in sorted(report.iterdir()):
            if path.name != ID:
                artifact.add_file(str(path), name=path.name)
        run.log_artifact(artifact)
        run.finish()

    def _start(self, network: Path, record: Row) -> Any:
        """The W&B run of a network. A training that was killed goes on in its own. Offline none can be gone on with: the new
        one takes the place of what was written before."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # or it calls home at exit, offline too
        import wandb

        own = _own_id(network)
        for written in self.folder.glob(f"wandb/offline-run-*-{own}") if self.offline else ():
            shutil.rmtree(written)
        return wandb.init(
            project=self.recipe.track.project,
            group=self.folder.resolve().name,
            name=str(network.relative_to(self.folder)),
            config={**self.recipe.model_dump(), "network": dict(record)},
            dir=self.folder,
            mode="offline" if self.offline else "online",
            reinit="create_new",
            settings=wandb.Settings(init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS, silent=True, console="off"),
            id=own,
            resume=None if self.offline else "allow",
        )


class WandBSink:
    """One W&B run, which gets only the rows that it lacks."""

    def __init__(self, run: Any):
        self.run, self.first = run, run.step  # 0, or in a run that is gone on with, after its last

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        if step >= self.first:
            self.run.log(dict(figures), step=step)

    def finish(self, status: str, final: Mapping[str, float]) -> None:
        self.run.summary.update({"status": status, **final})
        self.run.finish(exit_code=0 if status == "done" else 1)


def _own_id(network: Path) -> str:
    """The id of the W&B run of a network, which its folder keeps."""
    file = network / ID
    own = file.read_text() if file.exists() else ""
    if not re.fullmatch("[0-9a-f]{16}", own):  # which names a folder to remove: nothing else may stand there
        own = secrets.token_hex(8)
        files.write_text(file, own)
    return own
