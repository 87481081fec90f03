"""Iterative magnitude pruning: round after round, the smallest survivors of the last one go, and what is left trains again."""

from data_prep.errors import InputError
from lottery import patterns, store
from lottery.fanout.ranks import ALONE, Terms
from lottery.jobs import Round
from lottery.plan import Plan
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.results import following
from lottery.run import Run
from lottery.stages.dispatch import Summary, dispatch
from lottery.verdicts import LEAST_REPLICATES

NO_HEADLINE = (
    f"no controls yet: they accompany the headline, which takes {LEAST_REPLICATES} replicates, all their tickets trained, and "
    "one that matches; the same command trains them then"
)
NO_RATE = 1e-3  # the share of the peak below which a schedule's last rate teaches nothing


def rounds(run: Run, reporter: Reporter, levels: int | None = None, terms: Terms = ALONE) -> Summary | None:
    """Train every round of every chain (replicate, method, rewind point) up to `levels`, or else the recipe's, and the
    controls: those of the rounds that the recipe names, or else, after all that, those of each headline. None on a rank that
    does not coordinate.

    Raises InputError when a dense network is not trained, or the recipe asks for what cannot be.
    """
    planned = run.plan()
    recipe = run.recipe.rounds

    def list_jobs() -> list[Round]:
        jobs = checked_rounds(run, planned, levels)
        run.adopt()
        if recipe.controls and not recipe.controls_follow and not any(job.variant in recipe.controls for job in jobs):
            reporter.say("no controls: rounds.control_levels names none of these rounds")
        return jobs

    def list_controls() -> list[Round]:
        jobs = headline_controls(run, planned, levels)
        headlines = dict.fromkeys(f"{job.chain.name} round {job.level:02d}" for job in jobs)
        reporter.say(f"controls of the headline: {', '.join(headlines)}" if jobs else NO_HEADLINE)
        return jobs

    return dispatch(run, planned, list_jobs, reporter, terms, list_controls if recipe.controls_follow else None)


def headline_controls(run: Run, planned: Plan, levels: int | None = None) -> list[Round]:
    """The controls of headlines, of the replicates that the command is about."""
    found = following.controls(run, planned, levels or run.recipe.rounds.levels)
    return [job for job in found if job.replicate in run.numbers()]


def checked_rounds(run: Run, planned: Plan, levels: int | None = None) -> list[Round]:
    """The networks of all rounds, in their order. Raises InputError as `rounds` does."""
    run.check_trained()
    _check(run.recipe, planned)
    jobs = planned.rounds(run.numbers(), levels or run.recipe.rounds.levels)
    for chain in planned.chains(run.numbers()):
        for step in (chain.step, planned.total_steps):
            snapshot = run.replicate(chain.replicate).snapshot(step)
            if not snapshot.exists():
                raise InputError(f"{snapshot} is missing: run {run.typed('train')}, which adds it")
    patterns.check(run, lambda: _variables(run, planned))
    return jobs


def _variables(run: Run, planned: Plan) -> list[str]:
    state = store.load_state(run.replicates()[0].snapshot(planned.total_steps), slots=False)
    return [*state.weights, *state.statistics]


def _check(recipe: Recipe, planned: Plan) -> None:
    rounds = recipe.rounds
    if not rounds.methods:
        raise InputError("rounds.methods is empty: name weights, lr, finetune or init")
    if "finetune" in rounds.methods and planned.finetune_rate < NO_RATE * recipe.train.learning_rate:
        raise InputError(
            f"finetune trains at the schedule's last rate, and that of train.schedule = {recipe.train.schedule!r} is next to "
            "none: set rounds.finetune_rate"
        )
