"""Stage 4: every (mask, rewind point) pair and its controls trained, by this process or fanned out over MPI ranks."""

from data_prep.errors import InputError
from lottery import grids
from lottery.fanout.ranks import ALONE, Terms
from lottery.jobs import Job
from lottery.progress import Reporter
from lottery.run import Run
from lottery.stages.dispatch import Summary, dispatch


def retrain(
    run: Run, reporter: Reporter, quantiles: str | None = None, rewind: str | None = None, terms: Terms = ALONE
) -> Summary | None:
    """Train every pair that has no result yet, and try again what failed. None on a rank that does not coordinate.

    Without `quantiles`, every mask there is; without `rewind`, the recipe's rewind points. Raises InputError when there are
    no masks yet, or not the ones asked for.
    """

    def list_jobs() -> list[Job]:
        jobs = checked_jobs(run, quantiles, rewind)
        run.adopt()
        if run.recipe.retrain.controls and all(job.variant == "ticket" for job in jobs):
            wanted = run.recipe.retrain.control_quantiles
            reporter.say(f"no controls: they are of quantile {wanted} (retrain.control_quantiles), not of these")
        return jobs

    return dispatch(run, run.plan(), list_jobs, reporter, terms)


def checked_jobs(run: Run, quantiles: str | None = None, rewind: str | None = None) -> list[Job]:
    """The jobs of a retraining, longest first. Raises InputError as `retrain` does."""
    planned = run.plan()
    run.check_trained()
    _check_masks(run, quantiles)
    return run.jobs(planned, quantiles, rewind)


def _check_masks(run: Run, quantiles: str | None) -> None:
    """Raise InputError when a replicate has no masks, or lacks one that is asked for (by default: that another one has)."""
    there = {replicate.folder: set(replicate.quantiles()) for replicate in run.replicates()}
    wanted = set(grids.parse_quantiles(quantiles)) if quantiles is not None else set().union(*there.values())
    for folder, made in there.items():
        if not made:
            raise InputError(f"{folder} has no masks: run {run.typed('thresholds')} first")
        missing = ",".join(map(grids.quantile_name, sorted(wanted - made)))
        if missing:
            raise InputError(f"{folder} has no mask of {missing}: run {run.typed(f'thresholds --quantiles {missing}')} first")
