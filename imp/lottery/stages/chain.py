"""A whole run as jobs of a cluster that wait for each other: what `imp run` does in one process."""

import dataclasses
from collections.abc import Mapping, Sequence

from data_prep.records import MANIFEST
from lottery.base.errors import InputError
from lottery.executors.slurm import MOST_TASKS, TASK, Job
from lottery.experiment import agreement, controls, plan
from lottery.experiment.graph import Ticket
from lottery.experiment.plan import Plan
from lottery.results import grouping
from lottery.rundir.run import Run
from lottery.stages.prepare import expected
from lottery.stages.retrain import CHAIN
from lottery.stages.stability import copies
from lottery.stages.train import is_complete


def jobs(run: Run, slots: int) -> list[Job]:
    """The jobs that do what is missing in `run`, in order, of which at most `slots` tasks train at a time.

    Records, dense networks and masks must be whole before what is made from them begins. The networks of one shot are an array
    with a task for each; those of rounds an array for each round, whose tasks wait for the same task of the round before, so
    that a chain of rounds that is slow holds up no other. Nothing need be prepared yet. What comes last begins even if networks
    failed. Raises InputError for a recipe that could never be trained, and where a dense network diverged."""
    agreement.check(run.recipe)
    run.check()
    run.check_converged()
    run = run.widened()
    return _Chain(run, run.trained_plan() or _estimated(run), slots).jobs()


def _estimated(run: Run) -> Plan:
    """The plan of a run of which nothing is trained, and perhaps nothing prepared."""
    manifest = expected(run)
    return plan.estimated(run.recipe, manifest.count("train") or None, run.share, len(manifest.classes))


@dataclasses.dataclass
class _Chain:
    run: Run
    planned: Plan
    slots: int
    first: list[Job] = dataclasses.field(default_factory=list)  # before all networks under masks
    networks: list[Job] = dataclasses.field(default_factory=list)  # which train these

    def jobs(self) -> list[Job]:
        self._begin()
        families = self.run.recipe.families
        self._one_shot([name for name, family in families.items() if not family.rounds])
        for count in sorted({family.rounds for family in families.values()} - {0}):
            self._rounds(count, [name for name, family in families.items() if family.rounds == count])
        last = [Job("stability", ("stability",), self._after())] if self._has_pairs_left() else []
        after = self._after() | {job.name: "afterany" for job in last}
        return [*self.first, *self.networks, *last, Job("report", ("report",), after, on_gpus=False)]

    def _begin(self) -> None:
        """What there must be before tickets: records, dense networks, masks of one shot."""

        def add(name: str, *arguments: str, array: str | None = None, on_gpus: bool = True) -> None:
            after = {self.first[-1].name: "afterok"} if self.first else {}
            self.first.append(Job(name, (name, *arguments), after, array, on_gpus))

        records, steps, numbers = self.run.records(), self.planned.snapshot_steps(), self.run.numbers()
        if not ((records / MANIFEST).exists() and self.run.manifest().is_whole(records)):
            add("prepare", on_gpus=False)
        if dense := [number for number in numbers if not is_complete(self.run.replicate(number), steps)]:
            add("train", "--replicate", TASK, array=self._array(dense))
        if not all(self.run.mask(mask).is_cut for mask in self.planned.masks(numbers, self.run.recipe.families)):
            add("thresholds")

    def _one_shot(self, names: Sequence[str]) -> None:
        tickets = self._tickets(names)
        count = min(len(set(map(CHAIN, tickets))), MOST_TASKS)
        places = {one: place % count for place, one in enumerate(dict.fromkeys(map(CHAIN, tickets)))}
        is_new = any(job.name == "thresholds" for job in self.first)  # then parts are not yet those of the masks that exist
        left = {places[CHAIN(one)] + 1 for one in tickets if is_new or not self.run.network(one).is_finished}
        if left:
            self._add("retrain", "retrain", names, ("--headlines", "leave"), count, sorted(left))
        self._headlines("retrain", names, tickets)

    def _rounds(self, count: int, names: Sequence[str]) -> None:
        """An array for each of `count` rounds. It has no more tasks than can train at a time: several arrays run at once."""
        alone = all(family.rounds in (0, count) for family in self.run.recipe.families.values())
        prefix = "round" if alone else f"{names[0]}-round"
        tickets = self._tickets(names)
        parts = min(len(set(map(CHAIN, tickets))), self.slots)
        lends = any(control in controls.BORROWED for name in names for control in self.run.recipe.families[name].controls)
        before: Mapping[str, str] | None = None
        for number in range(1, count + 1):
            if before or not self._is_finished([one for one in tickets if one.mask.round == number]):
                options, title = ("--rounds", str(number), "--headlines", "leave"), f"{prefix}-{number:02d}"
                self._add(title, "rounds", names, options, parts, range(1, parts + 1), before)
                before = {title: "afterany" if lends else "aftercorr"}  # others' masks of the round before, or its own
        self._headlines(prefix, names, tickets)

    def _headlines(self, prefix: str, names: Sequence[str], tickets: Sequence[Ticket]) -> None:
        """The controls of headlines, which are known once all `tickets` are trained."""
        families = {name: self.run.recipe.families[name] for name in names}
        recipe = self.run.recipe.model_copy(update={"families": families})
        costs = plan.dry_run(dataclasses.replace(self.planned, recipe=recipe))
        count = min(len({CHAIN(one.network) for one in costs if not one.certain}), MOST_TASKS)
        known = grouping.controls(self.run, self.planned, families) if self._is_finished(tickets) else None
        if count and (known is None or not self._is_finished(known)):
            stage = "rounds" if families[names[0]].rounds else "retrain"
            self._add(f"{prefix}-controls", stage, names, ("--headlines", "only"), count, range(1, count + 1))

    def _add(
        self,
        name: str,
        stage: str,
        families: Sequence[str],
        options: Sequence[str],
        parts: int,
        tasks: Sequence[int],
        after: Mapping[str, str] | None = None,
    ) -> None:
        """One that trains some of so many parts of the networks of `families`, after all that do so before it, or `after`
        others. Its networks are trained one at a time: the bits of a bundle depend on its size."""
        chosen = [part for one in families for part in ("--family", one)]
        arguments = (stage, *chosen, *options, "--bundle", "1", "--part", f"{TASK}/{parts}")
        needs_masks = any(self.run.recipe.families[one].is_cut_at_once for one in families)
        before = self._after(needs_masks) if after is None else after
        self.networks.append(Job(name, arguments, before, self._array(tasks), tolerates=stage == "rounds"))

    def _after(self, needs_masks: bool = True) -> dict[str, str]:
        """What networks under masks, and all that comes after them, wait for."""
        first = [job for job in self.first if needs_masks or job.name != "thresholds"]
        return {job.name: "afterok" for job in first[-1:]} | {job.name: "afterany" for job in self.networks[-1:]}

    def _tickets(self, names: Sequence[str]) -> list[Ticket]:
        return self.planned.tickets(self.run.numbers(), {name: self.run.recipe.families[name] for name in names})

    def _array(self, tasks: Sequence[int]) -> str:
        """`1-100%20`, `2,5`: tasks, and how many at a time."""
        is_row = len(tasks) > 1 and list(tasks) == list(range(tasks[0], tasks[-1] + 1))
        numbers = f"{tasks[0]}-{tasks[-1]}" if is_row else ",".join(map(str, tasks))
        return f"{numbers}%{self.slots}" if len(tasks) > self.slots else numbers

    def _has_pairs_left(self) -> bool:
        """Whether copies are still to be compared."""
        if all(family.copies == 1 for family in self.run.recipe.families.values()):
            return False
        try:
            pairs = copies(self.run)
        except InputError:  # some are not trained
            return True
        return not all(self.run.replicate(one.other.replicate).pair(one.other, one.copies).exists() for one in pairs)

    def _is_finished(self, tickets: Sequence[Ticket]) -> bool:
        return all(self.run.network(one).is_finished for one in tickets)
