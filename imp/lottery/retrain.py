"""Stage 4: every (mask, rewind point) pair and its controls trained, by this process or fanned out over MPI ranks."""

import dataclasses
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from data_prep.errors import InputError
from lottery import fanout, grids, plan
from lottery.fanout import Result
from lottery.grids import Job
from lottery.progress import Reporter, duration
from lottery.run import Run
from lottery.start import start_tensorflow
from lottery.thresholds import listed


@dataclasses.dataclass
class Summary:
    """How the jobs of a retraining ended: `finished` before or now, and those that did not, with the reason."""

    finished: int = 0
    unfinished: list[tuple[Job, Result]] = dataclasses.field(default_factory=list)


def retrain(run: Run, reporter: Reporter, quantiles: str | None = None, rewind: str | None = None) -> Summary | None:
    """Train every pair that has no result yet, and try again what failed. None on a rank that does not coordinate.

    Without `quantiles`, every mask there is; without `rewind`, the recipe's rewind points. Raises InputError when there are
    no masks yet, or not the ones asked for.
    """
    planned = run.plan()
    summary = Summary()
    clock = _Clock()

    def make_jobs() -> list[Job]:
        jobs = all_jobs(run, planned, quantiles, rewind)
        run.adopt()
        missing = [job for job in jobs if not finished(run.network(job).read_result())]
        summary.finished = len(jobs) - len(missing)
        reporter.say(f"{len(jobs)} networks under masks: {summary.finished} finished, {len(missing)} to train")
        clock.start(len(missing), sum(planned.epochs(job) for job in missing))
        return missing

    def make_work() -> fanout.Work:
        start_tensorflow()  # here, because a rank that coordinates or idles does not need it
        from lottery import tickets

        return tickets.Worker(run, planned, reporter)

    def done(job: Job, result: Result) -> None:
        if finished(result) and result["status"] == "done":
            summary.finished += 1
        else:
            summary.unfinished.append((job, result))
        reporter.say(f"{clock.tick(planned.epochs(job))} {job}: {outcome(result)}")

    return summary if fanout.fan_out(make_jobs, make_work, done, reporter.say) else None


def all_jobs(run: Run, planned: plan.Plan, quantiles: str | None = None, rewind: str | None = None) -> list[Job]:
    """Every job of the masks there are. Raises InputError when a mask that is asked for is not there."""
    wanted: set[Fraction] = set(grids.parse_quantiles(quantiles)) if quantiles else set()
    for replicate in run.replicates():
        wanted |= set() if quantiles else set(listed(replicate))
    for replicate in run.replicates():
        missing = [grids.quantile_name(quantile) for quantile in sorted(wanted - set(listed(replicate)))]
        if missing:
            raise InputError(
                f"{replicate.folder} has no mask for quantile {missing[0]}: "
                f"run `imp thresholds --quantiles {','.join(missing)}` first"
            )
    return planned.jobs(sorted(wanted), rewind or run.recipe.retrain.rewind)


def finished(result: dict[str, Any] | None) -> bool:
    """Whether a network needs no more training: done, or diverged, which it would do again."""
    return result is not None and result["status"] in ("done", "diverged")


def outcome(result: Result) -> str:
    if result["status"] == "done":
        return f"validation {result['final']['validation_accuracy']:.2%}, {duration(result['timing']['seconds'])}"
    return f"{result['status']}: {str(result.get('reason', '')).strip().splitlines()[-1]}"


def failures(summary: Summary) -> Sequence[str]:
    """One line for each network that has no result."""
    return [f"{job} {outcome(result)}" for job, result in summary.unfinished]


class _Clock:
    """Counts jobs and estimates the time left from the epochs done so far."""

    def start(self, jobs: int, epochs: float) -> None:
        self.began, self.jobs, self.count, self.epochs, self.spent = time.monotonic(), jobs, 0, epochs, 0.0

    def tick(self, epochs: float) -> str:
        self.count, self.spent = self.count + 1, self.spent + epochs
        left = (time.monotonic() - self.began) / self.spent * (self.epochs - self.spent)
        return f"[{self.count}/{self.jobs}, {duration(left)} left]"
