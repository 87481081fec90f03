"""Stage 4: every (mask, rewind point) pair and its controls trained, by this process or fanned out over MPI ranks."""

import dataclasses
import time

from data_prep.errors import InputError
from lottery import fanout, grids
from lottery.fanout import Result
from lottery.grids import Job
from lottery.progress import Reporter, duration
from lottery.run import Run
from lottery.start import start_tensorflow


@dataclasses.dataclass
class Summary:
    """How the jobs of a retraining ended: `finished` before or now, and those that did not, with the reason."""

    finished: int = 0
    unfinished: list[tuple[Job, Result]] = dataclasses.field(default_factory=list)

    @property
    def only_busy(self) -> bool:
        """Whether all that is missing is being trained by other processes."""
        return all(result["status"] == "busy" for _, result in self.unfinished)

    def lines(self) -> list[str]:
        """One line for each network that was not finished."""
        return [f"{job} {outcome(result)}" for job, result in self.unfinished]


def retrain(run: Run, reporter: Reporter, quantiles: str | None = None, rewind: str | None = None) -> Summary | None:
    """Train every pair that has no result yet, and try again what failed. None on a rank that does not coordinate.

    Without `quantiles`, every mask there is; without `rewind`, the recipe's rewind points. Raises InputError when there are
    no masks yet, or not the ones asked for.
    """
    planned = run.plan()
    summary = Summary()
    clock = _Clock()

    def make_jobs() -> list[Job]:
        jobs = checked_jobs(run, quantiles, rewind)
        run.adopt()
        if run.recipe.retrain.controls and all(job.variant == "ticket" for job in jobs):
            reporter.say(f"no controls: there is no mask of quantile {run.recipe.retrain.control_quantiles} among these")
        missing = [job for job in jobs if not run.network(job).is_finished]
        summary.finished = len(jobs) - len(missing)
        reporter.say(f"{len(jobs)} networks under masks: {summary.finished} finished, {len(missing)} to train")
        clock.start(len(missing), sum(planned.epochs(job) for job in missing))
        return missing

    def make_work() -> fanout.Work:
        start_tensorflow()  # here, because a rank that coordinates or idles does not need it
        from lottery import tickets

        return tickets.Worker(run, planned, reporter)

    def done(job: Job, result: Result) -> None:
        if result["status"] == "done":
            summary.finished += 1
        else:
            summary.unfinished.append((job, result))
        reporter.say(f"{clock.tick(planned.epochs(job))} {job}: {outcome(result)}")

    return summary if fanout.fan_out(make_jobs, make_work, done, reporter.say) else None


def checked_jobs(run: Run, quantiles: str | None = None, rewind: str | None = None) -> list[Job]:
    """The jobs of a retraining, longest first. Raises InputError as `retrain` does."""
    _check_masks(run, quantiles)
    return run.jobs(run.plan(), quantiles, rewind)


def _check_masks(run: Run, quantiles: str | None) -> None:
    """Raise InputError when a replicate has no masks, or lacks one that is asked for (by default: that another one has)."""
    there = {replicate.folder: set(replicate.quantiles()) for replicate in run.replicates()}
    wanted = set(grids.parse_quantiles(quantiles)) if quantiles is not None else set().union(*there.values())
    for folder, made in there.items():
        if not made:
            raise InputError(f"{folder} has no masks: run `imp thresholds` first")
        missing = ",".join(map(grids.quantile_name, sorted(wanted - made)))
        if missing:
            raise InputError(f"{folder} has no mask of {missing}: run `imp thresholds --quantiles {missing}` first")


def outcome(result: Result) -> str:
    if result["status"] == "done":
        return f"validation {result['final']['validation_accuracy']:.2%}, {duration(result['timing']['seconds'])}"
    return f"{result['status']}: {str(result.get('reason', '')).strip().splitlines()[-1]}"


class _Clock:
    """Counts jobs and estimates the time left from the epochs done so far."""

    def start(self, jobs: int, epochs: float) -> None:
        self.began, self.jobs, self.count, self.epochs, self.spent = time.monotonic(), jobs, 0, epochs, 0.0

    def tick(self, epochs: float) -> str:
        self.count, self.spent = self.count + 1, self.spent + epochs
        left = (time.monotonic() - self.began) / self.spent * (self.epochs - self.spent)
        return f"[{self.count}/{self.jobs}, {duration(left)} left]"
