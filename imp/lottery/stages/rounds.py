"""Iterative magnitude pruning: round after round, the smallest survivors of the last one go, and what is left trains again."""

from data_prep.errors import InputError
from lottery import patterns, store
from lottery.fanout.ranks import ALONE, Terms
from lottery.jobs import Round
from lottery.plan import Plan
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.run import Run
from lottery.stages.dispatch import Summary, dispatch

NO_RATE = 1e-3  # the share of the peak below which a schedule's last rate teaches nothing


def rounds(run: Run, reporter: Reporter, levels: int | None = None, terms: Terms = ALONE) -> Summary | None:
    """Train every round of every chain (replicate, method, rewind point) up to `levels`, or else the recipe's, and the
    controls. None on a rank that does not coordinate.

    Raises InputError when a dense network is not trained, or the recipe asks for what cannot be.
    """
    planned = run.plan()

    def list_jobs() -> list[Round]:
        jobs = checked_rounds(run, planned, levels)
        run.adopt()
        if run.recipe.rounds.controls and all(job.variant == "ticket" for job in jobs):
            reporter.say("no controls: rounds.control_levels names none of these rounds")
        return jobs

    return dispatch(run, planned, list_jobs, reporter, terms)


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
    if "extended" in rounds.controls and not {"lr", "finetune"} & set(rounds.methods):
        raise InputError("rounds.controls: extended goes with the methods lr and finetune, which train on: leave it out")
    if "finetune" in rounds.methods and planned.finetune_rate < NO_RATE * recipe.train.learning_rate:
        raise InputError(
            f"finetune trains at the schedule's last rate, and that of train.schedule = {recipe.train.schedule!r} is next to "
            "none: set rounds.finetune_rate"
        )
