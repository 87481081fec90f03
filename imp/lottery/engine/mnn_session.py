"""MNN, without TensorFlow: a session that answers to images; and, as a program, the conversion of a network. It is a program
because MNN's converter prints, and crashes on what it cannot read."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

TFLITE, MNN_FILE, IMAGES, OUTPUTS = "network.tflite", "network.mnn", "images.npy", "outputs.npy"  # in the program's folder


def load(path: Path, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function of one image, float32 [height, width, channels], that returns the logits, float32 [classes], of the network in
    the .mnn file `path`, computed by so many threads."""
    import MNN

    network = MNN.Interpreter(str(path))
    session = network.createSession({"backend": "CPU", "numThread": threads, "precision": "high"})
    into, out = network.getSessionInput(session), network.getSessionOutput(session)
    outputs = np.zeros(out.getShape(), np.float32)
    fetched = MNN.Tensor(out.getShape(), MNN.Halide_Type_Float, outputs, MNN.Tensor_DimensionType_Tensorflow)

    def answer(image: np.ndarray) -> np.ndarray:
        given = MNN.Tensor(into.getShape(), MNN.Halide_Type_Float, image.ravel(), MNN.Tensor_DimensionType_Tensorflow)
        into.copyFrom(given)  # before every run: it reuses the memory of its input
        network.runSession(session)
        out.copyToHostTensor(fetched)
        return np.array(fetched.getData(), np.float32).ravel()

    return answer


def main(folder: Path, *options: str) -> None:
    """Convert TFLITE in `folder` to MNN_FILE, and write its logits for IMAGES, float32 [images, classes], to OUTPUTS."""
    import _tools  # of MNN; its command `mnnconvert` would call this too, and then upgrade packages by pip

    source, target = folder / TFLITE, folder / MNN_FILE
    _tools.mnnconvert(
        ["mnnconvert", "-f", "TFLITE", "--modelFile", str(source), "--MNNModel", str(target), "--bizCode", "imp", *options]
    )
    answer = load(target, threads=1)
    np.save(folder / OUTPUTS, np.stack([answer(image) for image in np.load(folder / IMAGES)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
