"""Exact masks in a user's own `model.fit`: Keras 3 on TensorFlow, JAX or PyTorch. Described in docs/keras.md.

`prune` puts masks on a compiled model, `strip` takes them off, `rewind` makes a lottery ticket, `compact` a smaller model.
Import this module before `keras.models.load_model` opens a model that was saved with its masks.
"""

from lottery.keras.fitting import from_target, resume, update
from lottery.keras.model import compact, masks, prune, rewind, snapshot, strip
from lottery.keras.optimizer import Pruned
from lottery.keras.plan import SET, Constant, Cubic, RigL

__all__ = ["SET", "Constant", "Cubic", "Pruned", "RigL", "compact", "from_target", "masks", "prune", "resume", "rewind"]
__all__ += ["snapshot", "strip", "update"]
