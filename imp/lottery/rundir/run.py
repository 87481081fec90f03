"""A run: its directory, its recipe, and the part of it that a command works on. Stages share only the directory."""

import contextlib
import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.prepare import AnySettings, existing, settings_of
from data_prep.records import MANIFEST, Manifest, read_manifest
from lottery import __version__
from lottery.base import environment, files, locks
from lottery.base.errors import InputError
from lottery.experiment import controls, plan, reading, tasks
from lottery.experiment.expected_macs import expected_share
from lottery.experiment.family import Family
from lottery.experiment.graph import Mask, Ticket
from lottery.experiment.grids import Grid, Quantile
from lottery.experiment.plan import Plan, Selection
from lottery.experiment.recipe import Recipe
from lottery.experiment.rule import Rule
from lottery.pruning import criteria
from lottery.rundir import identity, wording
from lottery.rundir.names import ENVIRONMENT, RECIPE, File, MaskFiles, NetworkFiles, Replicate, replicate_numbers
from lottery.rundir.records import Result
from lottery.trackers import mirror

ADOPT_SECONDS = 30.0  # that a command waits for others which write the same run's recipe
EVERYTHING = Selection()
LATEST = Path("runs/latest")  # a link to the run that commands use by default


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory and the recipe of its outputs. A command may work on the `chosen` replicates only. Networks are
    `judged_by` a rule, which is made of the recipe's `delta`."""

    folder: Path
    recipe: Recipe
    chosen: tuple[int, ...] = ()
    judged_by: Callable[[float], Rule] = Rule

    report = File("report")
    sweep = File("sweep")  # a search for hyperparameters: its trials and its outcome
    bundle = File("bundle.json")  # the size of bundles that was found to be the fastest
    slurm = File("slurm")  # batch scripts, and the logs of their jobs

    @property
    def rule(self) -> Rule:
        return self.judged_by(self.recipe.delta)

    def worded(self, text: str) -> str:
        """`text` with the words of the run's metric and of its rule."""
        return wording.worded(text, self.metric, **self.rule.words)

    def numbers(self) -> Sequence[int]:
        """The replicates that a command works on: those chosen, or as many as the recipe says. They count from 1."""
        return self.chosen or range(1, self.recipe.replicates + 1)

    def typed(self, stage: str) -> str:
        """What a user types to run `stage` for the replicates that the command works on."""
        return f"`imp {' '.join([stage, *(f'--replicate {number}' for number in self.chosen)])}`"

    def known_numbers(self) -> list[int]:
        """The recipe's replicates, and those that were added to them one by one."""
        return sorted({*range(1, self.recipe.replicates + 1), *replicate_numbers(self.folder)})

    def replicate(self, number: int) -> Replicate:
        return Replicate(self.folder / f"replicate-{number}")

    def replicates(self) -> list[Replicate]:
        return [self.replicate(number) for number in self.numbers()]

    def network(self, ticket: Ticket) -> NetworkFiles:
        return self.replicate(ticket.replicate).network(ticket)

    def network_in(self, folder: str) -> NetworkFiles:
        """The network in the folder `folder` of the run directory."""
        return NetworkFiles(self.folder / folder)

    def mask(self, mask: Mask) -> MaskFiles:
        return self.replicate(mask.replicate).mask(mask)

    def check_converged(self) -> None:
        """Raises InputError if the dense network of a replicate diverged."""
        for replicate in self.replicates():
            result = replicate.dense.read_result()
            if result and result.status == "diverged":
                raise InputError(f"{replicate.dense.folder} diverged: {result.reason}, and remove that folder")

    def check_trained(self) -> None:
        """Raises InputError if the dense network of a replicate is not trained."""
        self.check_converged()
        for replicate in self.replicates():
            result = replicate.dense.read_result()
            if not result or result.status != "done":
                raise InputError(f"{replicate.dense.folder} holds no finished training: run {self.typed('train')} first")
        if (self.records() / MANIFEST).exists():
            self.check_origins({"records": self.manifest().digest})

    def diverged(self) -> set[int]:
        """The replicates whose dense network diverged."""
        results = {number: self.replicate(number).dense.read_result() for number in self.known_numbers()}
        return {number for number, result in results.items() if result and result.status == "diverged"}

    def check_origins(self, origins: Mapping[str, str]) -> None:
        """Raises InputError if anything in this run was made from other examples (`records`), or of another `network`."""
        for folder in self.claimed():
            identity.check_origins(folder, origins)

    def check_outputs(self) -> None:
        """Raises InputError if an output, finished or begun, is not what the recipe would make."""
        for folder in self.claimed():
            identity.check_folder(folder, self.recipe)

    def claimed(self) -> list[Path]:
        """The folders that say what their outputs, finished or begun, are made with."""
        return [folder for number in replicate_numbers(self.folder) for folder in self.replicate(number).claimed()]

    def families(self, selection: Selection = EVERYTHING) -> dict[str, Family]:
        """The families that a command works on. One shot prunes at the quantiles asked for; otherwise at all quantiles that
        a replicate has masks of, or at the recipe's if there are none; if it prunes gradually, at the recipe's and those of
        networks that were begun. Raises InputError as `Selection.of` does."""
        families = selection.of(self.recipe)
        for name, family in families.items() if selection.quantiles is None else ():
            if family.quantiles and (cut := self.cut_quantiles(name)):
                asked = family.quantiles if family.is_gradual else ()
                families[name] = family.model_copy(update={"quantiles": Grid.of(sorted({*cut, *asked}))})
        return families

    def widened(self) -> "Run":
        """The same run, whose recipe also has the quantiles that masks were cut at: what all stages in a row would train."""
        families = {
            name: family.model_copy(update={"quantiles": Grid.of(sorted({*family.quantiles, *self.cut_quantiles(name)}))})
            if family.quantiles
            else family
            for name, family in self.recipe.families.items()
        }
        return dataclasses.replace(self, recipe=self.recipe.model_copy(update={"families": families}))

    def cut_quantiles(self, family: str) -> list[Quantile]:
        """The quantiles that a replicate has masks of, ascending (of gradual pruning, networks)."""
        is_gradual = family in self.recipe.families and self.recipe.families[family].is_gradual
        return sorted({quantile for replicate in self.replicates() for quantile in replicate.quantiles(family, is_gradual)})

    def tickets(self, planned: Plan, selection: Selection = EVERYTHING) -> list[Ticket]:
        """Every network to train under a mask, in order. Raises InputError as `Plan.tickets` and `families` do."""
        return planned.tickets(self.numbers(), self.families(selection))

    def records(self) -> Path:
        """The folder of the prepared set: `data.path`; or else, of the default one (in `IMP_DATA` or `data`), the one that the
        run was trained on, and the one beside `runs`, the first that was made as the recipe says; or else the first that
        holds a set; or else the default one."""
        if self.recipe.data.path:
            return Path(self.recipe.data.path)
        usual = default_records(self.recipe.records())
        known = Path(self._noted().get("records", usual))
        beside = self.folder.resolve().parent.parent / usual
        # Another name is a set of other settings. What may not be read is passed over.
        named = [place for place in (usual, known, beside) if place.name == usual.name]
        places = [place for place in named if os.path.exists(place / MANIFEST)]
        if len(set(map(Path.resolve, places))) > 1:
            places.sort(key=lambda place: not self._suits(place))
        return (places or [usual])[0]

    def _suits(self, place: Path) -> bool:
        with contextlib.suppress(InputError, OSError):
            return bool(existing(self.recipe.records(), place, self.examples()))
        return False

    def environment(self) -> dict[str, Any]:
        """What the run was started on, and where its `records` were last. Raises InputError if that file is missing."""
        if not (self.folder / ENVIRONMENT).exists() and (self.folder / RECIPE).exists():
            raise InputError(f"{self.folder / ENVIRONMENT} is missing: {self.typed('train')} writes a new one")
        return self._noted()

    def _noted(self) -> dict[str, Any]:
        path = self.folder / ENVIRONMENT
        return files.read_json(path) if path.exists() else {}

    def begun_from(self) -> dict[str, str]:
        """The digest of the file that dense networks begin with, as the origin `weights`, if one is named and there."""
        path = self.recipe.model.weights_file
        if not self.recipe.model.weights or not path.is_file():
            return {}
        with path.open("rb") as file:
            return {"weights": hashlib.file_digest(file, "sha256").hexdigest()}

    def manifest(self) -> Manifest:
        return existing(self.recipe.records(), self.records(), self.examples())

    def examples(self) -> set[str]:
        """The digests of the records that this run was begun on, wherever they came from."""
        dense = [self.replicate(number).dense.folder for number in replicate_numbers(self.folder)]
        begun = [identity.made_with(folder).made_from.get("records") for folder in dense if (folder / identity.FILE).exists()]
        return {digest for digest in (self._noted().get("examples"), *begun) if digest}

    def known_training_examples(self) -> int | None:
        """The size of the training split, or None while the records are not there."""
        return self.manifest().count("train") if (self.records() / MANIFEST).exists() else None

    def common(self) -> dict[str, str]:
        """What must be the same in all ranks that work on it."""
        return {"versions of imp": __version__, "recipes": repr(self.recipe), "records": self.manifest().digest}

    def plan(self) -> Plan:
        """As the dense training carried it out, or else as the records give it. Raises InputError when these are missing or do
        not suit the recipe."""
        dense, classes = self._trained(), self._known_classes()
        if dense:
            return plan.of(self.recipe, dense.steps_per_epoch, self.share, classes)
        return plan.make(self.recipe, self.manifest().count("train"), self.share, classes)

    def estimated_plan(self) -> Plan:
        """The plan as far as the size of the set is known. Raises InputError as `plan.estimated` does."""
        return plan.estimated(self.recipe, self.known_training_examples(), self.share, self._known_classes())

    def _known_classes(self) -> int | None:
        return len(self.manifest().classes) if (self.records() / MANIFEST).exists() else None

    def share(self, mask: Mask) -> float:
        """The share of the dense network's MACs that a mask leaves; of one that is not cut, what is to be expected."""
        if (cut := self.mask(mask).read()) and cut.costs.macs and cut.costs.dense_macs:
            return cut.costs.macs / cut.costs.dense_macs
        topology, family = self.replicate(mask.replicate).read_topology(), self.recipe.families[mask.family]
        expected = expected_share(mask, family, self.recipe.pruning, topology) if topology and family.quantiles else None
        return plan.by_weights(mask) if expected is None else expected

    def trained_plan(self) -> Plan | None:
        """The plan that the dense training carried out, for those who read the run; None before there is one."""
        dense = self._trained()
        return plan.of(self.recipe, dense.steps_per_epoch, self.share) if dense else None

    @property
    def metric(self) -> str:
        """The name of the metric that decides, as the dense training wrote it, or else as the task says."""
        dense = self._trained()
        return dense.metric if dense else tasks.deciding(self.recipe.task)

    def _trained(self) -> Result | None:
        """The first result of a finished dense training."""
        results = (self.replicate(number).dense.read_result() for number in self.known_numbers())
        return next((dense for dense in results if dense and dense.status == "done"), None)

    def check(self) -> None:
        """Raise InputError where a network of the recipe could never be trained, and for a tracker that does not exist."""
        mirror.check(self.recipe, self.folder)
        for family in self.recipe.families.values():
            criteria.by_name(family.criterion)
            list(map(controls.of, family.controls))
        examples = self.known_training_examples()
        if examples is None and self.recipe.train.steps:
            return  # points in epochs cannot be compared with its length yet
        planned = self.trained_plan() or plan.estimated(self.recipe, examples, self.share)
        planned.tickets([1], self.families())

    @contextlib.contextmanager
    def adopting(self) -> Iterator[None]:
        """Within, stages adopt this recipe. Where one fails before anything is made with it, what `adopt` wrote is undone."""
        own, noted, adopted = self.folder / RECIPE, self.folder / ENVIRONMENT, reading.sealed(self.recipe).encode()
        before = {path: path.read_bytes() for path in (own, noted) if path.exists()}
        is_new, latest = before.get(own) != adopted, os.readlink(LATEST) if LATEST.is_symlink() else None
        made = self.claimed() if is_new else []
        try:
            yield
        except Exception:
            if is_new and own.exists():
                with locks.writing(self.folder, ADOPT_SECONDS):
                    if own.read_bytes() == adopted and self.claimed() == made:
                        for path in (own, noted):
                            files.write_bytes(path, before[path]) if path in before else path.unlink(missing_ok=True)
                        if LATEST.is_symlink() and os.readlink(LATEST) == self.folder.resolve().name:
                            _point_latest(latest)
            raise

    def adopt(self) -> None:
        """Make this recipe the run's, and a run in `runs` of the current folder the one that commands use by default. A stage
        calls it once its input is found good, before its first output. Raises InputError as `check` does."""
        self.check()
        own, content, known = self.folder / RECIPE, reading.sealed(self.recipe), self._noted()
        described = known or environment.describe()
        if (self.records() / MANIFEST).exists():
            described = {**described, "records": str(self.records().resolve()), "examples": self.manifest().digest}
        if described != known or not own.exists() or own.read_bytes() != content.encode():
            with locks.writing(self.folder, ADOPT_SECONDS):
                files.write_json(self.folder / ENVIRONMENT, described)
                files.write_text(own, content)
        actual = self.folder.resolve()
        is_right = os.readlink(LATEST) == actual.name if LATEST.is_symlink() else LATEST.exists()  # which is a user's own
        if actual.parent == LATEST.parent.resolve() and not is_right:
            _point_latest(actual.name)


def _point_latest(name: str | None) -> None:
    """Let commands use the run of this name in `runs` by default; None: no run."""
    if name is None:
        LATEST.unlink()
        return
    temporary = LATEST.with_name(f".latest.{os.getpid()}.tmp")
    temporary.symlink_to(name)
    os.replace(temporary, LATEST)


def default_records(settings: AnySettings) -> Path:
    """Where `imp prepare` puts a set by default."""
    return settings.folder(Path(os.environ.get("IMP_DATA") or "data"))


def open_run(
    folder: Path | str | None = None,
    recipe_file: Path | str | None = None,
    overrides: Sequence[str] = (),
    must_exist: bool = False,
    records: Path | None = None,
) -> Run:
    """The run in `folder` (or of the recipe, where that is a .toml file), else in `$IMP_RUN`, else `runs/NAME` of a named
    recipe, else `runs/latest`, else `runs/digits`.

    Its recipe is `recipe_file`, or the run's own, or the default one, with `overrides` on top. With `records`, the folder of a
    prepared set, its data are those, and without a recipe the run is called like them. Nothing is written. Raises InputError
    when the recipe is malformed, outputs were made with another one or copied, or a run that `must_exist` does not."""
    if folder is not None and str(folder).endswith(".toml"):
        recipe_file, folder = Path(folder), None
    setter, latest = "--records" if records and not overrides else "--set", LATEST
    if records is not None:
        name, *data = _said_by(records)
        overrides = [*([] if recipe_file else [name]), *data, *overrides]
    named = reading.resolve(reading.load(Path(recipe_file)), overrides, str(recipe_file), setter) if recipe_file else None
    folder = folder or os.environ.get("IMP_RUN")
    if not folder and latest.is_symlink() and not (recipe_file or records):
        folder = latest.parent / os.readlink(latest)
    folder = Path(folder or latest.parent / (named or reading.resolve({}, overrides)).name)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a run directory: name another with --run")
    own = folder / RECIPE
    if must_exist and not own.exists():
        raise InputError(f"there is no run in {folder}: start one with `imp run` or `imp train`, or name it with --run")
    if own.exists():
        reading.check_format(own)
    if named is None:
        named = reading.resolve(reading.load_sealed(own) if own.exists() else {}, overrides, str(own), setter)
    plan.check_points(named)
    run = Run(folder, named)
    run.check_outputs()
    for number in run.known_numbers():
        run.replicate(number).dense.read_result()  # refuses a copy of another replicate, whose seed it would have
    return run


def _said_by(records: Path) -> list[str]:
    """The recipe values that a prepared set stands for: the name of a run on it, and its data. That labels are noisy, or images
    chosen, only a recipe says: no run takes such records for others, or others for such."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", records.resolve().name).lstrip("-._")
    settings = {"data.path": records.resolve(), **settings_of(read_manifest(records)).values}
    for key in ("label_noise", "hardest", "easiest", "scores"):
        settings.pop(f"data.{key}", None)
    named = "records" if name in ("", "latest") else name
    return [f"name={named}", *(f"{key}={value}" for key, value in settings.items())]
