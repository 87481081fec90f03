"""Train the networks of a run that are missing, here or over MPI ranks, and say how it goes."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from data_prep.errors import InputError
from lottery import cuts, jobs, locks
from lottery.fanout import ranks
from lottery.fanout.coordinator import Result
from lottery.fanout.ranks import Beat, Terms, Work
from lottery.fanout.share import Seat
from lottery.jobs import AnyJob
from lottery.lineage import WAY_OUT, Lineage
from lottery.plan import Plan
from lottery.progress import Reporter, duration
from lottery.run import ENDED, Run
from lottery.start import start_tensorflow


@dataclasses.dataclass
class Summary:
    """How the jobs ended: `finished` before or now, and those that did not, with the reason."""

    finished: int = 0
    unfinished: list[tuple[AnyJob, Result]] = dataclasses.field(default_factory=list)

    @property
    def only_busy(self) -> bool:
        """Whether all that is missing is being trained by other processes."""
        return all(result["status"] == "busy" for _, result in self.unfinished)

    def lines(self) -> list[str]:
        """One line for each network that was not finished."""
        return [f"{job} {outcome(result)}" for job, result in self.unfinished]


ListJobs = Callable[[], Sequence[AnyJob]]


def dispatch(
    run: Run, planned: Plan, list_jobs: ListJobs, reporter: Reporter, terms: Terms, list_later: ListJobs | None = None
) -> Summary | None:
    """Train every job of `list_jobs` that has no result yet, each once what it needs is there, and try again what failed; after
    that those of `list_later`. None on a rank that does not coordinate. Jobs are listed where they are handed out; what that
    raises ends all ranks."""
    later = (lambda: terms.part.of(list_later())) if list_later else None
    campaign = _Campaign(run, planned, reporter, later)

    def make_work(seat: Seat, beat: Beat) -> Work:
        start_tensorflow()  # here, because a rank that coordinates or idles does not need it
        from lottery.stages import tickets

        return tickets.Worker(run, planned, reporter.beating(beat), seat)

    common = {"recipes": repr(run.recipe), "images": run.manifest().digest}
    terms = dataclasses.replace(terms, threads=run.recipe.train.threads, common=common)
    with locks.staying(run.folder):
        coordinated = ranks.fan_out(
            lambda: campaign.begin(terms.part.of(list_jobs())), make_work, campaign.done, reporter.say, terms
        )
        return campaign.end() if coordinated else None


class _Campaign:
    """The jobs of one command: which are ready, which wait for another, how those that were done ended."""

    def __init__(self, run: Run, planned: Plan, reporter: Reporter, list_later: ListJobs | None = None):
        self.run, self.planned, self.reporter, self.summary, self.list_later = run, planned, reporter, Summary(), list_later
        self.waiting: list[AnyJob] = []
        self.under_way = 0  # jobs that were released and have not ended
        self.trained: set[AnyJob] = set()  # by this command; on a shared file system their results may show up here later

    def begin(self, wanted: Sequence[AnyJob]) -> list[AnyJob]:
        """The jobs that can be done at once."""
        self._add(wanted)
        return self._released()

    def _add(self, wanted: Sequence[AnyJob]) -> None:
        results = {job: self.run.network(job).read_result() or {} for job in wanted}
        done = [job for job, result in results.items() if result.get("status") == "done"]
        self._cut_again([job for job in done if isinstance(job, jobs.Round)])
        self._check_lineage(done)
        missing = [job for job, result in results.items() if result.get("status") not in ENDED]
        diverged = [(job, result) for job, result in results.items() if result.get("status") == "diverged"]
        finished = len(wanted) - len(missing) - len(diverged)
        for job, result in results.items():
            if result.get("status") == "done":
                self.run.network(job).clear()
        self.reporter.say(
            f"{len(wanted)} networks under masks: {finished} finished, "
            f"{f'{len(diverged)} diverged, ' if diverged else ''}{len(missing)} to train"
        )
        self.summary.finished += finished
        self.summary.unfinished += diverged
        self.clock = _Clock(len(missing), sum(self.planned.epochs(job) for job in missing))
        self.waiting += missing

    def _cut_again(self, done: Sequence[jobs.Round]) -> None:
        """Write the tables that finished rounds have lost, as a user is told to remove a damaged one."""
        for job in sorted(done, key=lambda job: job.level):
            level = self.run.replicate(job.replicate).level(job.chain, job.level)
            if level.mask.exists() and not level.table.exists():
                cuts.cut(self.run, job.chain, job.level, self.planned.total_steps)

    def _check_lineage(self, done: Sequence[AnyJob]) -> None:
        """Raise InputError where a finished network was not made from the dense network that is there."""
        lineages = {number: Lineage(self.run.replicate(number)) for number in {job.replicate for job in done}}
        for job in done:
            table = self.run.network(job).result
            if problem := lineages[job.replicate].problem(table):
                raise InputError(f"{table} {problem}: {WAY_OUT}")

    def done(self, job: AnyJob, result: Result) -> list[AnyJob]:
        """Note how `job` ended; the jobs that can be done now."""
        self.under_way -= 1
        if result["status"] == "done":
            self.summary.finished += 1
            self.trained.add(job)
        else:
            self.summary.unfinished.append((job, result))
        self.reporter.say(f"{self.clock.tick(self.planned.epochs(job))} {job}: {outcome(result)}")
        return self._released()

    def end(self) -> Summary:
        """The summary, with those that never had what they need. What another process was training may be finished by now."""
        unfinished = self.summary.unfinished
        elsewhere = [job for job, result in unfinished if result["status"] == "busy" and self.run.network(job).is_finished]
        self.summary.finished += len(elsewhere)
        self.summary.unfinished = [(job, result) for job, result in unfinished if job not in elsewhere]
        busy = {job for job, result in unfinished if result["status"] == "busy"}
        for job in self.waiting:  # each after what it needs, which is of an earlier round or its ticket
            needed = jobs.needed(job)
            if needed in busy:
                busy.add(job)
            status = "busy" if needed in busy else "waiting"
            self.summary.unfinished.append((job, {"status": status, "reason": f"needs {needed}"}))
        return self.summary

    def _released(self) -> list[AnyJob]:
        ready = [job for job in self.waiting if self._is_ready(job)]
        self.waiting = [job for job in self.waiting if job not in ready]
        self.under_way += len(ready)
        if not self.under_way and self.list_later:
            list_later, self.list_later = self.list_later, None
            if later := list_later():
                self._add(later)
                return self._released()
        return sorted(ready, key=lambda job: isinstance(job, jobs.Round) and job.variant != "ticket")

    def _is_ready(self, job: AnyJob) -> bool:
        needed = jobs.needed(job)
        if needed is None or needed in self.trained:
            return True
        result = self.run.network(needed).read_result()
        return result is not None and result["status"] == "done"


def outcome(result: Result) -> str:
    if result["status"] == "done":
        return f"validation {result['final']['validation_accuracy']:.2%}, {duration(result['timing']['seconds'])}"
    return f"{result['status']}: {str(result.get('reason', '')).strip().splitlines()[-1]}"


class _Clock:
    """Counts jobs and estimates the time left from the epochs done so far."""

    def __init__(self, jobs: int, epochs: float):
        self.began, self.jobs, self.count, self.epochs, self.spent = time.monotonic(), jobs, 0, epochs, 0.0

    def tick(self, epochs: float) -> str:
        self.count, self.spent = self.count + 1, self.spent + epochs
        left = (time.monotonic() - self.began) / self.spent * (self.epochs - self.spent)
        return f"[{self.count}/{self.jobs}, {duration(left)} left]"
