"""Weights & Biases as a mirror of metrics.jsonl, one run per network. Never needed, never fatal."""

import os
import sys
from pathlib import Path
from typing import Any

from lottery.recipe import Recipe

INIT_SECONDS = 20


class Tracker:
    """Passes rows on to a W&B run, or nowhere. The first failure is told once and ends the mirroring of this network."""

    def __init__(self, run: Any = None):
        self._run = run

    def log(self, row: dict[str, Any]) -> None:
        figures = {key: value for key, value in row.items() if key not in ("step", "timing")}
        self._attempt(lambda run: run.log(figures, step=row["step"]))

    def finish(self, result: dict[str, Any]) -> None:
        self._attempt(lambda run: run.summary.update({"status": result["status"], **result.get("final", {})}))
        self._attempt(lambda run: run.finish(exit_code=0 if result["status"] == "done" else 1))

    def _attempt(self, call: Any) -> None:
        if self._run is None:
            return
        try:
            call(self._run)
        except Exception as error:  # a mirror must not end a training, whatever breaks in it
            self._run = None
            _complain(error)


def track(recipe: Recipe, folder: Path, network: Path) -> Tracker:
    """A tracker for the network in `network` of the run in `folder`; off unless the recipe asks for it."""
    return Tracker(None if recipe.track.wandb == "off" else _start(recipe, folder, network))


def _start(recipe: Recipe, folder: Path, network: Path) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # or it calls home at exit, offline too
    try:
        import wandb

        return wandb.init(
            project=recipe.track.project,
            group=folder.resolve().name,
            name=str(network.relative_to(folder)),
            config=recipe.model_dump(),
            dir=folder,
            mode="offline" if recipe.track.wandb == "offline" else "online",
            reinit="create_new",
            settings=wandb.Settings(init_timeout=INIT_SECONDS, silent=True, console="off"),
        )
    except Exception as error:  # no account, no network, no disk for its files: train on without it
        _complain(error)
        return None


def _complain(error: Exception) -> None:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    print(f"wandb is off for this network ({reason}); metrics.jsonl has everything", file=sys.stderr)
