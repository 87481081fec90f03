"""Train the networks of a run that are missing, here or over MPI ranks, and say how it goes."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from lottery import jobs
from lottery.fanout import ranks
from lottery.fanout.coordinator import Result
from lottery.fanout.ranks import Beat, Terms, Work
from lottery.fanout.share import Seat
from lottery.jobs import AnyJob
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


def dispatch(
    run: Run, planned: Plan, list_jobs: Callable[[], Sequence[AnyJob]], reporter: Reporter, terms: Terms
) -> Summary | None:
    """Train every job of `list_jobs` that has no result yet, each once what it needs is there, and try again what failed.
    None on a rank that does not coordinate. `list_jobs` runs where jobs are handed out; what it raises ends all ranks."""
    campaign = _Campaign(run, planned, reporter)

    def make_work(seat: Seat, beat: Beat) -> Work:
        start_tensorflow()  # here, because a rank that coordinates or idles does not need it
        from lottery.stages import tickets

        return tickets.Worker(run, planned, reporter.beating(beat), seat)

    common = {"recipes": repr(run.recipe), "images": run.manifest().digest}
    terms = dataclasses.replace(terms, threads=run.recipe.train.threads, common=common)
    coordinated = ranks.fan_out(
        lambda: campaign.begin(terms.part.of(list_jobs())), make_work, campaign.done, reporter.say, terms
    )
    return campaign.end() if coordinated else None


class _Campaign:
    """The jobs of one command: which are ready, which wait for another, how those that were done ended."""

    def __init__(self, run: Run, planned: Plan, reporter: Reporter):
        self.run, self.planned, self.reporter, self.summary = run, planned, reporter, Summary()
        self.waiting: list[AnyJob] = []
        self.trained: set[AnyJob] = set()  # by this command; on a shared file system their results may show up here later

    def begin(self, wanted: Sequence[AnyJob]) -> list[AnyJob]:
        """The jobs that can be done at once."""
        results = {job: self.run.network(job).read_result() or {} for job in wanted}
        missing = [job for job, result in results.items() if result.get("status") not in ENDED]
        self.summary.unfinished = [(job, result) for job, result in results.items() if result.get("status") == "diverged"]
        self.summary.finished = len(wanted) - len(missing) - len(self.summary.unfinished)
        for job, result in results.items():
            if result.get("status") == "done":
                self.run.network(job).clear()
        diverged = f"{len(self.summary.unfinished)} diverged, " if self.summary.unfinished else ""
        self.reporter.say(
            f"{len(wanted)} networks under masks: {self.summary.finished} finished, {diverged}{len(missing)} to train"
        )
        self.clock = _Clock(len(missing), sum(self.planned.epochs(job) for job in missing))
        self.waiting = missing
        return self._released()

    def done(self, job: AnyJob, result: Result) -> list[AnyJob]:
        """Note how `job` ended; the jobs that can be done now."""
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
