"""Training as a stream of events, with no folder: what comes when, and that it ends where it diverges."""

import numpy as np
import pytest
from tiny import STEPS, initial, same

from lottery.engine import events
from lottery.engine.checkpoints import Clock
from lottery.engine.events import CheckpointDue, Evaluated, SnapshotDue, Stepped
from lottery.engine.loop import Diverged, Trainer

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture
def trainer(make_trainer, monkeypatch):
    """A trainer of three steps a call whose checkpoints are due at step 4 alone."""
    monkeypatch.setattr(Clock, "is_due", lambda clock, step: step == 4)
    monkeypatch.setattr(Trainer, "_adapt", lambda trainer, count, seconds: None)
    trainer = make_trainer(epochs=2)
    trainer._steps_per_call = 3
    trainer.load(initial())
    return trainer


def test_events_come_in_the_order_of_the_steps(trainer):
    stream = list(events.run(trainer, 0, 2 * STEPS, 0, snapshots={0, 4, 2 * STEPS}))

    assert [type(event) for event in stream] == [
        *(Stepped, Stepped, SnapshotDue, CheckpointDue, Stepped, Evaluated),
        *(Stepped, Stepped, SnapshotDue, Evaluated),
    ]
    assert [(event.step, len(event.figures)) for event in stream if isinstance(event, Stepped)] == [
        *((3, 3), (4, 1), (6, 2)),
        *((9, 3), (12, 3)),
    ]
    assert [event.state.step for event in stream if isinstance(event, SnapshotDue)] == [4, 2 * STEPS]
    assert [event.row["step"] for event in stream if isinstance(event, Evaluated)] == [STEPS, 2 * STEPS]


def test_a_training_goes_on_from_a_checkpoint_with_the_same_figures(trainer):
    whole = list(events.run(trainer, 0, 2 * STEPS, 0, snapshots={4}))
    expected = trainer.state(2 * STEPS)
    (saved,) = (event for event in whole if isinstance(event, CheckpointDue))

    trainer.load(saved.state)
    rest = list(events.run(trainer, 4, 2 * STEPS, 0, figures=saved.figures, seconds=saved.seconds))

    assert (saved.state.step, saved.figures.shape) == (4, (4, 3))
    assert same(trainer.state(2 * STEPS), expected)
    figures = [[{**event.row, "timing": {}} for event in stream if isinstance(event, Evaluated)] for stream in (whole, rest)]
    assert figures[0] == figures[1]


def test_divergence_is_the_last_event(trainer):
    state = initial()
    state.weights["predictions/bias"][:] = np.nan
    trainer.load(state)

    (divergence,) = events.run(trainer, 0, 2 * STEPS, 0)

    assert isinstance(divergence, Diverged)
    assert divergence.step == 0
