"""What `gpu.py` tries by commands of `imp`, as a user types them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_cases import NETWORKS, SMALL, Seen

ROOT = Path(__file__).resolve().parents[1]
IMP = [sys.executable, "-m", "lottery"]


def ranks(small: bool, network: str, count: int) -> Seen:
    """Processes that train on one device at the same time, beside bundles."""
    values = (SMALL if small else NETWORKS)[network]
    options = [part for value in (f"model.name={network}", "data.crop=0", *values) for part in ("--set", value)]
    asked = ["--tickets=1,16", f"--ranks={count}", "--repeats=2", "--json", *options, *["--quick"] * small]
    done = command(asked, program=[sys.executable, str(ROOT / "benchmarks/bundle.py")])
    if done.returncode:
        return Seen(False, last_line(done))
    rows = json.loads(done.stdout)["rows"]
    return Seen(None, "; ".join(f"{row['title']}: {row['ms_per_step']:.3f} ms a ticket's step" for row in rows))


def whole_run(small: bool, folder: Path) -> Seen:
    """`imp run` of the digits from end to end, with fewer replicates than in the recipe."""
    recipe = "smoke" if small else "digits"
    less = ["model.name=lenet_300_100", "data.size=8", "data.crop=0", "families.oneshot.controls=[]"]
    options = [part for value in (less if small else ["replicates=2"]) for part in ("--set", value)]
    began = time.perf_counter()
    done = command(["run", str(ROOT / f"pipelines/{recipe}.toml"), "--run", str(folder / "run"), "--ranks=1", *options], folder)
    spent = time.perf_counter() - began
    if not (folder / "run/recipe.toml").exists():
        return Seen(False, last_line(done))
    from lottery.results.reader import open_results

    found = open_results(folder / "run").frame()
    counts = found["status"].value_counts().to_dict()
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    dense = found[found["variant"] == "dense"]["test_accuracy"].mean()
    saw = f"exit code {done.returncode}, {spent:.0f} s: {told}; dense test accuracy {dense:.2%}"
    return Seen(done.returncode == 0, saw if done.returncode == 0 else f"{saw}; {last_line(done)}", {"seconds": spent})


def resumed(small: bool, folder: Path) -> Seen:
    """A training that is killed and typed again, beside one that was not."""
    network = "lenet_300_100" if small else "mobilenet_v2"
    alpha = [] if small else ["model.alpha=0.35"]
    values = [f"model.name={network}", *alpha, "data.size=8", "data.crop=0", "train.epochs=3", "train.snapshots=0,10it"]
    values += ["families.oneshot.rewind=0", "train.checkpoint_steps=5", "train.checkpoint_share=1"]
    (folder / "defaults.toml").write_text("")
    options = ["--recipe", "defaults.toml", *(part for value in values for part in ("--set", value))]
    whole, killed = folder / "whole", folder / "killed"
    dense = "replicate-1/train"
    for left in (whole, killed):
        shutil.rmtree(left, ignore_errors=True)
    done = command(["train", "--run", str(whole), *options], folder)
    if done.returncode:
        return Seen(False, last_line(done))
    process = subprocess.Popen(
        [*IMP, "train", "--run", str(killed), *options], cwd=folder, stderr=subprocess.DEVNULL, env=ours()
    )
    checkpoint = killed / dense / "checkpoint.h5"
    while process.poll() is None and not checkpoint.exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    began_at = "a checkpoint" if checkpoint.exists() else "nothing: it had ended"
    done = command(["train", "--run", str(killed)], folder)
    if done.returncode:
        return Seen(False, last_line(done))
    files = [path.relative_to(whole) for path in (whole / dense).rglob("*.h5")]
    unequal = [str(path) for path in files if (whole / path).read_bytes() != (killed / path).read_bytes()]
    return Seen(not unequal, f"resumed from {began_at}: {len(files) - len(unequal)} of {len(files)} files are the same bytes")


def export(folder: Path) -> Seen:
    """A ticket of `whole_run`, exported there."""
    from lottery.results.reader import open_results

    tickets = open_results(folder / "run").networks(variant="ticket")
    if not tickets:
        return Seen(False, "the run has no ticket")
    done = command(
        ["export", "--run", str(folder / "run"), "--ticket", tickets[0].name, "--to=keras", "--out", "ticket.keras"], folder
    )
    (folder / "ticket.json").write_text(json.dumps({"accuracy": tickets[0].test_accuracy, "name": tickets[0].name}))
    return Seen(done.returncode == 0, f"{tickets[0].name}: {last_line(done)}")


def exported(folder: Path) -> Seen:
    """Its accuracy on a CPU."""
    import keras

    from lottery.results.reader import open_results

    told = json.loads((folder / "ticket.json").read_text())
    images, labels = open_results(folder / "run").images("test")
    answers = keras.models.load_model(folder / "ticket.keras", compile=False).predict(images, verbose=0).argmax(axis=1)
    here, there = float((answers == labels).mean()), told["accuracy"]
    saw = f"{told['name']}: {here:.2%} of {len(labels)} test images on the CPU, {there:.2%} where it was trained"
    return Seen(abs(here - there) * len(labels) <= 1.5, saw, {"here": here, "there": there})


def race(folder: Path, arrays: Path) -> Seen:
    """The time to 94 % on CIFAR-10."""
    done = command(["prepare", f"arrays:{arrays}", "--size=32", "--val=0.02", "--out", str(folder / "cifar10")], folder)
    if done.returncode:
        return Seen(False, last_line(done))
    script = [sys.executable, ROOT / "benchmarks/race.py", "--records", folder / "cifar10", "--json"]
    done = subprocess.run(script, cwd=folder, env=ours(), capture_output=True, text=True)
    return Seen(None, "; ".join(json.loads(done.stdout)["notes"])) if done.returncode == 0 else Seen(False, last_line(done))


def ours() -> dict[str, str]:
    """The environment of commands, which find this checkout's packages where they are not installed."""
    paths = [str(ROOT), str(ROOT / "imp"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def command(
    arguments: Sequence[str], folder: Path | None = None, program: Sequence[str] = IMP
) -> "subprocess.CompletedProcess[str]":
    """What a command of `imp`, or of another `program`, prints."""
    return subprocess.run([*program, *arguments], cwd=folder, env=ours(), capture_output=True, text=True)


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"
