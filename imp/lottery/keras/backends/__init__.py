"""What differs between the backends of Keras: a module for each, with the same functions. `backend` is that of this process."""

import importlib

import keras

from lottery.base.errors import InputError

KNOWN = ("tensorflow", "jax", "torch")

if keras.backend.backend() not in KNOWN:
    raise InputError(f"lottery.keras has no backend {keras.backend.backend()}: set KERAS_BACKEND to one of {', '.join(KNOWN)}")
backend = importlib.import_module(f"{__name__}.{keras.backend.backend()}")
