"""A whole run as jobs of a cluster that wait for each other: what `imp run` does in one process."""

import dataclasses
from collections.abc import Mapping, Sequence

from data_prep.records import MANIFEST
from lottery.base.errors import InputError
from lottery.executors.slurm import MOST_TASKS, TASK, Job
from lottery.executors.workload import Part
from lottery.experiment import agreement, plan
from lottery.experiment.graph import Ticket
from lottery.experiment.plan import Plan
from lottery.results import grouping
from lottery.rundir.run import Run
from lottery.stages.retrain import CHAIN
from lottery.stages.stability import copies
from lottery.stages.train import is_complete


def jobs(run: Run, slots: int) -> list[Job]:
    """The jobs that do what is missing in `run`, in order, of which at most `slots` tasks train at a time.

    Records, dense networks and masks must be whole before what is made from them begins. The networks of one shot are an array
    with a task for each; those of rounds an array for each round, whose tasks wait for the same task of the round before: a
    chain of rounds that fails holds up no other. Nothing need be prepared yet: epochs of unknown length are counted, too. What
    comes last begins even if networks failed. Raises InputError for a recipe that could never be trained, and where a dense
    network diverged."""
    agreement.check(run.recipe)
    run.check()
    run.check_converged()
    run = run.widened()
    return _Chain(run, run.trained_plan() or run.estimated_plan(), slots).jobs()


@dataclasses.dataclass
class _Chain:
    run: Run
    planned: Plan
    slots: int
    before: str = ""  # the job that all networks under masks wait for, if one is left
    networks: list[str] = dataclasses.field(default_factory=list)  # the jobs that train these, as far as they are listed

    def jobs(self) -> list[Job]:
        first, families = self._first(), self.run.recipe.families
        self.before = first[-1].name if first else ""
        found = [*first, *self._one_shot([name for name, family in families.items() if not family.rounds])]
        for count in sorted({family.rounds for family in families.values()} - {0}):
            found += self._rounds(count, [name for name, family in families.items() if family.rounds == count])
        last = dict.fromkeys(self.networks[-1:], "afterany")
        if not self._has_pairs():
            found.append(Job("stability", ("stability",), self._after(last)))
            last |= {"stability": "afterany"}
        return [*found, Job("report", ("report",), self._after(last), on_gpus=False)]

    def _first(self) -> list[Job]:
        """What there must be before tickets: records, dense networks, masks of one shot."""
        found = list[Job]()

        def add(name: str, *arguments: str, array: str | None = None, on_gpus: bool = True) -> None:
            after = {found[-1].name: "afterok"} if found else {}
            found.append(Job(name, (name, *arguments), after, array, on_gpus))

        records, steps, numbers = self.run.records(), self.planned.snapshot_steps(), self.run.numbers()
        if not ((records / MANIFEST).exists() and self.run.manifest().is_whole(records)):
            add("prepare", on_gpus=False)
        if dense := [number for number in numbers if not is_complete(self.run.replicate(number), steps)]:
            add("train", "--replicate", TASK, array=self._array(dense))
        if not all(self.run.mask(mask).is_cut for mask in self.planned.masks(numbers, self.run.recipe.families)):
            add("thresholds")
        return found

    def _one_shot(self, names: Sequence[str]) -> list[Job]:
        if not names:
            return []
        tickets = self._tickets(names)
        count = min(len(set(map(CHAIN, tickets))), MOST_TASKS)
        is_new = self.before == "thresholds"  # then it is not known yet which parts networks of new masks fall into
        left = [one for one in range(1, count + 1) if is_new or not self._is_finished(Part(one, count).of(tickets, CHAIN))]
        found = [self._job("retrain", ("retrain", "--part", f"{TASK}/{count}"), self._array(left))] if left else []
        return [*found, *self._headlines("retrain", names, tickets)]

    def _rounds(self, count: int, names: Sequence[str]) -> list[Job]:
        """An array for each of `count` rounds. It has no more tasks than can train at a time: several arrays run at once."""
        alone = all(family.rounds in (0, count) for family in self.run.recipe.families.values())
        prefix = "round" if alone else f"{names[0]}-round"
        tickets = self._tickets(names)
        parts = min(len(set(map(CHAIN, tickets))), self.slots)
        chosen = [part for name in names for part in ("--family", name)]
        found = list[Job]()
        for number in range(1, count + 1):
            if found or not self._is_finished([one for one in tickets if one.mask.round == number]):
                arguments = ("rounds", *chosen, "--rounds", str(number), "--part", f"{TASK}/{parts}")
                after = {found[-1].name: "aftercorr"} if found else None
                found.append(self._job(f"{prefix}-{number:02d}", arguments, f"1-{parts}", after, tolerates=True))
        return [*found, *self._headlines(prefix, names, tickets)]

    def _tickets(self, names: Sequence[str]) -> list[Ticket]:
        return self.planned.tickets(self.run.numbers(), {name: self.run.recipe.families[name] for name in names})

    def _headlines(self, prefix: str, names: Sequence[str], tickets: Sequence[Ticket]) -> list[Job]:
        """The controls of headlines, which are known once all `tickets` are trained."""
        families = {name: self.run.recipe.families[name] for name in names}
        recipe = self.run.recipe.model_copy(update={"families": families})
        costs = plan.dry_run(dataclasses.replace(self.planned, recipe=recipe))
        perhaps = {CHAIN(one.network) for one in costs if not one.certain}
        is_known = self._is_finished(tickets)
        if not perhaps or (is_known and self._is_finished(grouping.controls(self.run, self.planned, families))):
            return []
        chosen = [part for name in names for part in ("--family", name)]
        count, stage = min(len(perhaps), MOST_TASKS), "rounds" if families[names[0]].rounds else "retrain"
        arguments = (stage, *chosen, "--part", f"{TASK}/{count}")
        return [self._job(f"{prefix}-controls", arguments, self._array(range(1, count + 1)))]

    def _job(
        self, name: str, arguments: Sequence[str], array: str, after: Mapping[str, str] | None = None, tolerates: bool = False
    ) -> Job:
        """One that trains networks under masks, after all that do so before it, or after other jobs."""
        before = self._after(dict.fromkeys(self.networks[-1:], "afterany"))
        self.networks.append(name)
        return Job(name, tuple(arguments), before if after is None else after, array, tolerates=tolerates)

    def _after(self, networks: Mapping[str, str]) -> dict[str, str]:
        return ({self.before: "afterok"} if self.before else {}) | dict(networks)

    def _array(self, tasks: Sequence[int]) -> str:
        """`1-100%20`, `2,5`: tasks, and how many at a time."""
        is_row = len(tasks) > 1 and list(tasks) == list(range(tasks[0], tasks[-1] + 1))
        numbers = f"{tasks[0]}-{tasks[-1]}" if is_row else ",".join(map(str, tasks))
        return f"{numbers}%{self.slots}" if len(tasks) > self.slots else numbers

    def _has_pairs(self) -> bool:
        """Whether there are no copies to compare, or all were compared."""
        if all(family.copies == 1 for family in self.run.recipe.families.values()):
            return True
        try:
            pairs = copies(self.run)
        except InputError:  # some are not trained
            return False
        return all(self.run.replicate(pair.other.replicate).pair(pair.other, pair.copies).exists() for pair in pairs)

    def _is_finished(self, tickets: Sequence[Ticket]) -> bool:
        return all(self.run.network(one).is_finished for one in tickets)
