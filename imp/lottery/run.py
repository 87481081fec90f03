"""The run directory: the only interface between stages, and the one module that names its files."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

from data_prep import files
from data_prep.errors import InputError
from data_prep.prepare import Settings, existing, settings_of
from data_prep.records import MANIFEST, Manifest, read_manifest
from lottery import environment, identity, locks, plan, recipe
from lottery.grids import parse_quantiles, quantile_name
from lottery.jobs import Chain, Job, Round, Variant
from lottery.plan import Plan
from lottery.recipe import Recipe

ENDED = "done", "diverged"  # statuses of what needs no more training
_LEVEL = re.compile(r"rounds/[a-z]+-step-\d+/\d+")
_NETWORK = re.compile(rf"(retrain/q[\d.]+-step-\d+|{_LEVEL.pattern})/({'|'.join(get_args(Variant))})")
RECIPE, ENVIRONMENT = "recipe.toml", "environment.json"
ADOPT_SECONDS = 30.0  # that a command waits for others which write the same run's recipe


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
    def attempt(self) -> Path:
        """There while a process is at work on it, or died of it."""
        return self.folder / "attempt.json"

    @property
    def final(self) -> Path:
        """A ticket's or a control's weights at the end; a dense network's are its last snapshot."""
        return self.folder / "final.h5"

    def clear(self) -> None:
        """Remove what is left of a training that is done, whose process died in its last moment."""
        for left in (self.checkpoint, self.attempt):
            if left.exists():
                left.unlink(missing_ok=True)

    def read_result(self) -> dict[str, Any] | None:
        """What the training came to. Raises InputError where that is damaged, or of another folder."""
        return identity.read_own(self.result) if self.result.exists() else None

    @property
    def is_finished(self) -> bool:
        """Whether it needs no more training: done, or diverged, which it would do again. What failed is tried again."""
        result = self.read_result()
        return result is not None and result["status"] in ENDED


@dataclasses.dataclass(frozen=True)
class Level:
    """The folder of one round of pruning: its mask, and beside it the networks trained under it."""

    folder: Path

    @property
    def mask(self) -> Path:
        return self.folder / "mask.h5"

    @property
    def table(self) -> Path:
        """What the round pruned; written after the mask."""
        return self.folder / "round.json"


@dataclasses.dataclass(frozen=True)
class Replicate:
    """One seed's share of a run: its dense network, masks and tickets."""

    folder: Path

    @property
    def dense(self) -> Network:
        return Network(self.folder / "train")

    def snapshot(self, step: int) -> Path:
        return self.folder / "train" / "snapshots" / f"step-{step:06d}.h5"

    def snapshot_steps(self) -> list[int]:
        """The steps at which there is a snapshot, ascending."""
        names = (path.stem.removeprefix("step-") for path in self.snapshot(0).parent.glob("step-*.h5"))
        return sorted(int(name) for name in names if name.isdigit())

    @property
    def thresholds(self) -> Path:
        """Written after the masks it lists; beside it the same as CSV."""
        return self.folder / "thresholds.json"

    @property
    def masks(self) -> Path:
        return self.folder / "masks"

    def mask(self, quantile: Fraction) -> Path:
        return self.masks / f"q{quantile_name(quantile)}.h5"

    def listed_quantiles(self) -> list[Fraction]:
        """The quantiles at which thresholds were taken, ascending."""
        if not self.thresholds.exists():
            return []
        return [Fraction(str(row["quantile"])) for row in files.read_json(self.thresholds)["quantiles"]]

    def quantiles(self) -> list[Fraction]:
        """Those of them whose masks are there: whoever wants others removes the masks."""
        return [quantile for quantile in self.listed_quantiles() if self.mask(quantile).exists()]

    def origins(self) -> dict[str, str]:
        """What the dense network was made from, by content: `records` and `network`; nothing before it is trained."""
        return dict((self.dense.read_result() or {}).get("made_from", {}))

    @property
    def topology(self) -> Path:
        """How the network's kernels are connected, from which a mask's effective density follows."""
        return self.folder / "train" / "topology.json"

    def level(self, chain: Chain, level: int) -> "Level":
        """Levels count from 1: the dense network is level 0."""
        return Level(self.folder / "rounds" / chain.name / f"{level:02d}")

    def table_of(self, path: Path) -> Path:
        """The table that stands for an output of this replicate: a mask, a snapshot, or what a training leaves."""
        if path.parent == self.masks:
            return self.thresholds
        if path.name == Level(path.parent).mask.name:
            return Level(path.parent).table
        return Network(path.parent.parent if path.parent.name == "snapshots" else path.parent).result

    def network(self, job: Job | Round) -> Network:
        if isinstance(job, Round):
            return Network(self.level(job.chain, job.level).folder / job.variant)
        return Network(self.folder / "retrain" / f"q{quantile_name(job.quantile)}-step-{job.step:06d}" / job.variant)

    def levels(self) -> list["Level"]:
        """Every round of pruning whose mask there is, chain by chain."""
        return [Level(folder) for folder in self._named(_LEVEL) if (folder / "round.json").exists()]

    def tables(self) -> list[Path]:
        """Every table that is there, each of which stands for files that were written before it."""
        tables = [self.dense.result, self.thresholds, *(level.table for level in self.levels())]
        tables += [network.result for network in self.networks()]
        return [table for table in tables if table.exists()]

    def networks(self) -> list[Network]:
        """Every network under a mask that has been begun, of whatever grid."""
        return [Network(folder) for folder in self._named(_NETWORK)]

    def _named(self, name: re.Pattern[str]) -> list[Path]:
        """The folders called as ours are, sorted: a copy that somebody keeps beside them is none."""
        places = (*self.folder.glob("retrain/*/*"), *self.folder.glob("rounds/*/*"), *self.folder.glob("rounds/*/*/*"))
        found = [path for path in places if name.fullmatch(path.relative_to(self.folder).as_posix())]
        return sorted(path for path in found if path.is_dir())


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory and the recipe its outputs are made with; a command may be about `chosen` replicates alone."""

    folder: Path
    recipe: Recipe
    chosen: tuple[int, ...] = ()

    def numbers(self) -> Sequence[int]:
        """The replicates that a command is about: those chosen, or as many as the recipe says. They count from 1."""
        return self.chosen or range(1, self.recipe.replicates + 1)

    def typed(self, stage: str) -> str:
        """What a user types to have `stage` done for the replicates that the command is about."""
        return f"`imp {' '.join([stage, *(f'--replicate {number}' for number in self.chosen)])}`"

    def known_numbers(self) -> list[int]:
        """The recipe's replicates, and those that were added to them one by one."""
        made = (path.name.removeprefix("replicate-") for path in self.folder.glob("replicate-*"))
        return sorted({*range(1, self.recipe.replicates + 1), *(int(number) for number in made if number.isdigit())})

    def replicate(self, number: int) -> Replicate:
        return Replicate(self.folder / f"replicate-{number}")

    def replicates(self) -> list[Replicate]:
        return [self.replicate(number) for number in self.numbers()]

    def network(self, job: Job | Round) -> Network:
        return self.replicate(job.replicate).network(job)

    def network_in(self, folder: str) -> Network:
        """The network whose folder is called so inside the run directory."""
        return Network(self.folder / folder)

    def check_trained(self) -> None:
        """Raises InputError where the dense network of a replicate is not there to build on."""
        for replicate in self.replicates():
            result = replicate.dense.read_result() or {}
            if result.get("status") == "diverged":
                raise InputError(f"{replicate.dense.folder} diverged: {result['reason']}, and remove that folder")
            if result.get("status") != "done":
                raise InputError(f"{replicate.dense.folder} holds no finished training: run {self.typed('train')} first")
        if (self.records() / MANIFEST).exists():
            self.check_origins({"records": self.manifest().digest})

    def check_origins(self, origins: Mapping[str, str]) -> None:
        """Raises InputError where something in this run is made from other images (`records`), or of another `network`."""
        identity.check_all_origins(self.folder, origins)

    def jobs(self, planned: Plan, quantiles: str | None = None, rewind: str | None = None) -> list[Job]:
        """Every network to train under a mask, longest first: at all quantiles that a replicate has masks of (the recipe's
        before there are any) and the recipe's rewind points, or at those of the grids given."""
        made = {quantile for replicate in self.replicates() for quantile in replicate.quantiles()}
        wanted = set(parse_quantiles(quantiles)) if quantiles is not None else made or set(self.recipe.quantiles())
        return planned.jobs(self.numbers(), sorted(wanted), rewind if rewind is not None else self.recipe.retrain.rewind)

    @property
    def report(self) -> Path:
        return self.folder / "report"

    @property
    def bench(self) -> Path:
        """Measurements that were made with `--out` here stand in the report."""
        return self.folder / "bench"

    @property
    def sweep(self) -> Path:
        """A search for hyperparameters: its trials, and what was found."""
        return self.folder / "sweep"

    @property
    def slurm(self) -> Path:
        """Batch scripts, and the logs of their jobs."""
        return self.folder / "slurm"

    def records(self) -> Path:
        """The folder of the prepared set: `data.path`; or else, of those that hold one, the first of the default one under
        `IMP_DATA` or in `data` of the current folder, the one that the run was trained on, and the one beside `runs`; or else
        the default one."""
        if self.recipe.data.path:
            return Path(self.recipe.data.path)
        usual = default_records(self.recipe.records())
        known = Path(self._noted().get("records", usual))
        beside = self.folder.resolve().parent.parent / usual
        return next((place for place in (usual, known, beside) if (place / MANIFEST).exists()), usual)

    def environment(self) -> dict[str, Any]:
        """What the run was begun on: versions, machine, revision; and where its `records` were last. Raises InputError where it
        is gone."""
        if not (self.folder / ENVIRONMENT).exists() and (self.folder / RECIPE).exists():
            raise InputError(f"{self.folder / ENVIRONMENT} is missing: {self.typed('train')} writes one of this machine")
        return self._noted()

    def _noted(self) -> dict[str, Any]:
        path = self.folder / ENVIRONMENT
        return files.read_json(path) if path.exists() else {}

    def manifest(self) -> Manifest:
        return existing(self.recipe.records(), self.records())

    def known_training_images(self) -> int | None:
        """The size of the training split, or None while the records are not there."""
        return self.manifest().count("train") if (self.records() / MANIFEST).exists() else None

    def plan(self) -> Plan:
        """Steps and jobs, as the dense training carried them out, or else as the records give them. Raises InputError when
        these are not there or do not suit the recipe."""
        return self.trained_plan() or plan.make(self.recipe, self.manifest().count("train"))

    def trained_plan(self) -> Plan | None:
        """The plan as the dense training carried it out; None before there is one."""
        for number in self.known_numbers():
            dense = self.replicate(number).dense.read_result()
            if dense and dense["status"] == "done":
                return plan.of(self.recipe, dense["steps_per_epoch"])
        return None

    def adopt(self) -> None:
        """Make this recipe the run's, and this run the one that commands use by default.

        Called by a stage once its input is found good, before its first output. `runs/latest` follows runs that lie in
        `runs` of the current folder; a run elsewhere is reached by --run or IMP_RUN.
        """
        own, content, known = self.folder / RECIPE, recipe.sealed(self.recipe), self._noted()
        described = known or environment.describe()
        if (self.records() / MANIFEST).exists():
            described = {**described, "records": str(self.records().resolve())}
        if described != known or not own.exists() or own.read_bytes() != content.encode():
            with locks.patiently(self.folder, ADOPT_SECONDS):
                files.write_json(self.folder / ENVIRONMENT, described)
                files.write_text(own, content)
        actual = self.folder.resolve()
        if actual.parent == Path("runs").resolve():
            _link(Path("runs") / "latest", actual.name)


def default_records(settings: Settings) -> Path:
    """Where `imp prepare` puts a set unless told otherwise."""
    return settings.folder(Path(os.environ.get("IMP_DATA") or "data"))


def open_run(
    folder: Path | None = None,
    recipe_file: Path | None = None,
    overrides: Sequence[str] = (),
    must_exist: bool = False,
    records: Path | None = None,
) -> Run:
    """The run in `folder`, else in `$IMP_RUN`, else `runs/NAME` of a named recipe, else `runs/latest`, else `runs/digits`.

    Its recipe is `recipe_file`, or the run's own, or the default one, with `overrides` on top. With `records`, the folder of a
    prepared set, its data are those, and without a recipe the run is called like them. Nothing is written.
    Raises InputError when the recipe is malformed, when outputs there were made with another one or copied from another folder,
    or when `must_exist` and there is no run.
    """
    setter = "--records" if records and not overrides else "--set"
    if records is not None:
        overrides = [*_data_of(records), *overrides]
        if recipe_file is None:
            overrides = [f"name={_run_name(records)}", *overrides]
            if folder is None and not os.environ.get("IMP_RUN"):
                folder = Path("runs") / recipe.resolve({}, overrides).name
    named = recipe.resolve(recipe.load(recipe_file), overrides, str(recipe_file), setter) if recipe_file else None
    folder = folder or _default_folder(named, overrides)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a run directory: name another with --run")
    own = folder / RECIPE
    if must_exist and not own.exists():
        raise InputError(f"there is no run in {folder}: start one with `imp run` or `imp train`, or name it with --run")
    if named is None:
        named = recipe.resolve(recipe.load_sealed(own) if own.exists() else {}, overrides, str(own), setter)
    run = Run(folder, named)
    plan.check_points(run.recipe)
    identity.check(folder, run.recipe)
    for number in run.known_numbers():
        run.replicate(number).dense.read_result()  # refuses a copy of another replicate, whose seed it would have
    return run


def _default_folder(named: Recipe | None, overrides: Sequence[str]) -> Path:
    if os.environ.get("IMP_RUN"):
        return Path(os.environ["IMP_RUN"])
    latest = Path("runs") / "latest"
    if named is None and latest.is_symlink():
        return Path("runs") / os.readlink(latest)
    return Path("runs") / (named or recipe.resolve({}, overrides)).name


def _data_of(records: Path) -> list[str]:
    """The recipe values that say: these records."""
    settings = dataclasses.asdict(settings_of(read_manifest(records)))
    return [f"data.path={records.resolve()}", *(f"data.{key}={value}" for key, value in settings.items())]


def _run_name(records: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", records.resolve().name).lstrip("-._")
    return "records" if name in ("", "latest") else name


def _link(link: Path, target: str) -> None:
    """Let `link` point to `target`; a file or folder of the user's own in its place is left alone."""
    if os.readlink(link) == target if link.is_symlink() else link.exists():
        return
    temporary = link.parent / f".{link.name}.{os.getpid()}.tmp"
    temporary.symlink_to(target)
    os.replace(temporary, link)
