"""The extras of this package (setup.cfg): which of them brings a library that is not installed."""

import importlib.util

from lottery.base.errors import InputError

EXTRAS = {
    "pipeline": (
        *("altair", "google_crc32c", "jinja2", "mpi4py", "optuna", "pandas", "PIL", "pynvml", "scipy", "sklearn"),
        *("tensorflow", "tensorflow_datasets", "vl_convert", "wandb", "yaml"),
    ),
    "mnn": ("MNN",),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "spark": ("pyspark",),
    "texts": ("rouge_score", "tokenizers"),
    "torch": ("torch",),
}


def install(library: str) -> str:
    """The command that installs the extra with a library of `EXTRAS`."""
    return next(f"pip install 'imp-lottery[{extra}]'" for extra, libraries in EXTRAS.items() if library in libraries)


def check(purpose: str, *libraries: str) -> None:
    """Raise InputError where one of the `libraries` that `purpose` needs is not installed."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise InputError(f"{purpose} needs {library}: {install(library)}")


def missing(error: BaseException) -> str | None:
    """The line for a user, if `error` says that a library of `EXTRAS` is not installed; None for any other error."""
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    known = any(library in libraries for libraries in EXTRAS.values())
    return f"this needs {library}, which is not installed: {install(library)}" if known else None
