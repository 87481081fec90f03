"""Weights & Biases as a mirror of metrics.jsonl, one run per network. Never needed, never fatal, never waited for but at the
end of a command: whatever it does, it does in a thread of its own while the training goes on."""

import os
import queue
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lottery.base import files
from lottery.base.errors import InputError, Moved, first_line

if TYPE_CHECKING:
    from lottery.experiment.recipe import Recipe
    from lottery.rundir.records import Result

ID = ".wandb-id"  # the file in a network's folder that says which W&B run is its own
INIT_SECONDS = 20
FINISH_SECONDS = 20  # that the end of a process waits for all that is still to be sent

Row = Mapping[str, Any]
Watch = Callable[[Row], None] | None

_sending: list[threading.Thread] = []
_told: set[str] = set()


class Tracker:
    """Passes rows on to the W&B run that `start` begins, or nowhere: first those `known` from an earlier process that have not
    arrived. The first failure is told once and ends the mirroring of this network. Each row goes to `watch`, too."""

    def __init__(self, start: Callable[[], Any] | None = None, known: Sequence[Row] = (), watch: Watch = None):
        self._watch = watch
        self._calls: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        if start:
            _send(partial(self._mirror, start, list(known)))

    def log(self, row: Row) -> None:
        self._calls.put(partial(_log, row))
        if self._watch:
            self._watch(row)

    def finish(self, result: "Result | None") -> None:
        """The training has ended, or without a result was stopped."""
        status = result.status if result else "stopped"
        final = result.final.model_dump(exclude={"step"}, exclude_none=True) if result and result.final else {}
        self._calls.put(lambda run: run.summary.update({"status": status, **final}))
        self._calls.put(lambda run: run.finish(exit_code=0 if status == "done" else 1))
        self._calls.put(None)

    def _mirror(self, start: Callable[[], Any], known: Sequence[Row]) -> None:
        run = start()
        for row in known:
            if row["step"] >= run.step:
                _log(row, run)
        while call := self._calls.get():
            call(run)


def _log(row: Row, run: Any) -> None:
    run.log({key: value for key, value in row.items() if key not in ("step", "timing")}, step=row["step"])


def track(recipe: "Recipe", folder: Path, network: Path, record: Row, rows: Sequence[Row] = (), watch: Watch = None) -> Tracker:
    """A tracker for the network in `network` of the run in `folder`, off unless the recipe asks for it. `record` is what the
    network is (variant, density, ...), `rows` what is known of its training from before this process."""
    start = None if recipe.track.wandb == "off" else partial(_start, recipe, folder, network, record)
    return Tracker(start, rows, watch)


def publish(recipe: "Recipe", folder: Path, report: Path) -> None:
    """Keep the report of the run in `folder` as an artifact of a W&B run beside those of its networks, if the recipe asks for
    mirroring. A failure is told in one line."""

    def work() -> None:
        import wandb

        run = _start(recipe, folder, report, {})
        artifact = wandb.Artifact(f"{folder.resolve().name}-report", type="report")
        for path in sorted(report.iterdir()):
            if path.name != ID:
                artifact.add_file(str(path), name=path.name)
        run.log_artifact(artifact)
        run.finish()

    if recipe.track.wandb != "off":
        _send(work)


def _send(work: Callable[[], None]) -> None:
    """Do `work` in a thread. Why it fails is told once for each reason, however many networks that is true of."""

    def sending() -> None:
        try:
            work()
        except (Exception, Moved) as error:  # no account, no network, no disk: a mirror ends no training, whatever breaks
            reason = first_line(error)
            if reason not in _told:
                _told.add(reason)
                print(f"wandb mirrors nothing ({reason}); metrics.jsonl has everything", file=sys.stderr)

    _sending.append(threading.Thread(target=sending, name="wandb mirror", daemon=True))
    _sending[-1].start()


def wait(seconds: float = FINISH_SECONDS) -> None:
    """Let what is still to be sent be sent, for so long at most: the last thing that a process does."""
    deadline = time.monotonic() + seconds
    for thread in _sending:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sum(thread.is_alive() for thread in _sending)
    _sending.clear()
    if left:
        print(f"wandb did not take {left} of its runs in time; metrics.jsonl has everything", file=sys.stderr)


def agents_run() -> Path | None:
    """The run directory of a training that an agent of a W&B sweep starts: one for each, by its id there. None elsewhere.
    Raises InputError for what is no id."""
    swept, run = os.environ.get("WANDB_SWEEP_ID"), os.environ.get("WANDB_RUN_ID")
    if "/" in f"{swept}{run}":  # which W&B allows in no id, and would lead out of `runs`
        raise InputError(
            f"WANDB_SWEEP_ID={swept} and WANDB_RUN_ID={run} are not ids of W&B, in which there is no slash: unset them"
        )
    return Path("runs") / f"wandb-{swept}-{run}" if swept and run else None


def _start(recipe: "Recipe", folder: Path, network: Path, record: Mapping[str, Any]) -> Any:
    """The W&B run of a network. A training that was killed goes on in its own. Offline none can be gone on with: the new one,
    which begins with all rows so far, takes the place of what was written before. An agent of a sweep has named its run."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # or it calls home at exit, offline too
    import wandb

    offline, own = recipe.track.wandb == "offline", None
    if "WANDB_RUN_ID" not in os.environ:
        file = network / ID
        own = file.read_text() if file.exists() else ""
        if not re.fullmatch("[0-9a-f]{16}", own):  # which names a folder to remove: nothing else may stand there
            own = secrets.token_hex(8)
            files.write_text(file, own)
        for written in folder.glob(f"wandb/offline-run-*-{own}") if offline else ():
            shutil.rmtree(written)
    return wandb.init(
        project=recipe.track.project,
        group=folder.resolve().name,
        name=str(network.relative_to(folder)),
        config={**recipe.model_dump(), "network": dict(record)},
        dir=folder,
        mode="offline" if offline else "online",
        reinit="create_new",
        settings=wandb.Settings(init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS, silent=True, console="off"),
        id=own,
        resume="allow" if own and not offline else None,
    )
