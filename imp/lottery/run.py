"""The run directory: the only interface between stages, and the one module that names its files."""

import dataclasses
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from data_prep import files
from data_prep.errors import InputError
from data_prep.prepare import existing
from data_prep.records import Manifest
from lottery import environment, plan, recipe
from lottery.grids import Job, quantile_name
from lottery.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Network:
    """The folder of one network: dense, ticket or control."""

    folder: Path

    @property
    def result(self) -> Path:
        """Written last: the training is over, well or not."""
        return self.folder / "result.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        """There while the training is under way."""
        return self.folder / "checkpoint.h5"

    @property
    def final(self) -> Path:
        """A ticket's or a control's weights at the end; a dense network's are its last snapshot."""
        return self.folder / "final.h5"

    def read_result(self) -> dict[str, Any] | None:
        return files.read_json(self.result) if self.result.exists() else None


@dataclasses.dataclass(frozen=True)
class Replicate:
    """One seed's share of a run: its dense network, masks and tickets."""

    folder: Path

    @property
    def dense(self) -> Network:
        return Network(self.folder / "train")

    def snapshot(self, step: int) -> Path:
        return self.folder / "train" / "snapshots" / f"step-{step:06d}.h5"

    @property
    def thresholds(self) -> Path:
        """Written after the masks it lists."""
        return self.folder / "thresholds.json"

    def mask(self, quantile: Fraction) -> Path:
        return self.folder / "masks" / f"q{quantile_name(quantile)}.h5"

    def network(self, job: Job) -> Network:
        return Network(self.folder / "retrain" / f"q{quantile_name(job.quantile)}-step-{job.step:06d}" / job.variant)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory and the recipe its outputs are made with."""

    folder: Path
    recipe: Recipe

    def replicate(self, number: int) -> Replicate:
        """Replicates count from 1."""
        return Replicate(self.folder / f"replicate-{number}")

    def replicates(self) -> list[Replicate]:
        return [self.replicate(number) for number in range(1, self.recipe.replicates + 1)]

    def network(self, job: Job) -> Network:
        return self.replicate(job.replicate).network(job)

    @property
    def report(self) -> Path:
        return self.folder / "report"

    def records(self) -> Path:
        """The folder of the prepared set: under `IMP_DATA`, or else `data` in the current folder."""
        return self.recipe.records().folder(Path(os.environ.get("IMP_DATA") or "data"))

    def manifest(self) -> Manifest:
        return existing(self.recipe.records(), self.records())

    def known_training_images(self) -> int | None:
        """The size of the training split, or None while the records are not there."""
        return self.manifest().count("train") if (self.records() / "manifest.json").exists() else None

    def plan(self) -> plan.Plan:
        """Steps and jobs. Raises InputError when the records are not there or do not suit the recipe."""
        return plan.make(self.recipe, self.manifest().count("train"))

    def adopt(self) -> None:
        """Make this recipe the run's, and this run the one that commands use by default.

        Called by a stage once its input is found good, before its first output. `runs/latest` follows runs that lie in
        `runs` of the current folder; a run elsewhere is reached by --run or IMP_RUN.
        """
        content = recipe.to_toml(self.recipe)
        path = self.folder / "recipe.toml"
        if not path.exists() or path.read_text() != content:
            files.write_text(path, content)
        if not (self.folder / "environment.json").exists():
            files.write_json(self.folder / "environment.json", environment.describe())
        if self.folder.resolve().parent == Path("runs").resolve():
            _link(Path("runs") / "latest", self.folder.name)


def open_run(
    folder: Path | None = None, recipe_file: Path | None = None, overrides: Sequence[str] = (), must_exist: bool = False
) -> Run:
    """The run in `folder`, else in `$IMP_RUN`, else `runs/NAME` of a named recipe, else `runs/latest`, else `runs/digits`.

    Its recipe is `recipe_file`, or the run's own, or the default one, with `overrides` on top. Nothing is written.
    Raises InputError when the recipe is malformed, when outputs there were made with another one, or when `must_exist` and
    there is no run.
    """
    named = recipe.resolve(recipe.load(recipe_file), overrides, str(recipe_file)) if recipe_file else None
    folder = folder or _default_folder(named)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a run directory: name another with --run")
    own = folder / "recipe.toml"
    if must_exist and not own.exists():
        raise InputError(f"there is no run in {folder}: start one with `imp run` or `imp train`, or name it with --run")
    table = recipe.load(own) if own.exists() else {}
    run = Run(folder, named or recipe.resolve(table, overrides, str(own)))
    plan.check_points(run.recipe)
    _check_outputs(run)
    return run


def _default_folder(named: Recipe | None) -> Path:
    if os.environ.get("IMP_RUN"):
        return Path(os.environ["IMP_RUN"])
    latest = Path("runs") / "latest"
    if named is None and latest.is_symlink():
        return Path("runs") / os.readlink(latest)
    return Path("runs") / (named or Recipe()).name


def _check_outputs(run: Run) -> None:
    """Raise InputError when an output there is not what the recipe would make, with the keys that differ."""
    for number in range(1, len(list(run.folder.glob("replicate-*"))) + 1):
        replicate = run.replicate(number)
        outputs: list[tuple[Path, recipe.Stage]] = [
            (replicate.dense.result, "train"),
            (replicate.thresholds, "thresholds"),
        ]
        outputs += [(path, "retrain") for path in sorted(replicate.folder.glob("retrain/*/*/result.json"))]
        for path, stage in outputs:
            if path.exists():
                _check_output(path, recipe.depends(run.recipe, stage))


def _check_output(path: Path, wanted: dict[str, Any]) -> None:
    made_with = files.read_json(path).get("made_with", {})
    differs = [
        f"{key} was {made_with.get(key)!r}, is {wanted.get(key)!r}"
        for key in sorted(made_with | wanted)
        if made_with.get(key) != wanted.get(key)
    ]
    if differs:
        raise InputError(
            f"{path} was made with another recipe ({'; '.join(differs)}): "
            "use the same values, another --run, or remove that folder"
        )


def _link(link: Path, target: str) -> None:
    if link.is_symlink() and os.readlink(link) == target:
        return
    temporary = link.parent / f".{link.name}.{os.getpid()}.tmp"
    temporary.symlink_to(target)
    os.replace(temporary, link)
