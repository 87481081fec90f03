"""Makes zoo/ again: small tickets of many kinds, each in a .zip with its recipe, verdict, seeds and checksums.

    python benchmarks/zoo.py            # trains the runs below that are missing, in `runs/`, and writes zoo/
    python benchmarks/zoo.py digits     # of those runs alone whose name begins so

`imp tickets zoo` lists them, `imp import zoo/NAME.zip` trains one anew.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from harness import imp

from lottery import cli
from lottery.base import files
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.results import markdown
from lottery.results.tables import interval
from lottery.rundir.run import open_run
from lottery.rundir.tickets import listed, open_ticket, unzipped
from lottery.share.export import export

ROOT = Path(__file__).parent.parent
LICENSE = "mit"


class Source(NamedTuple):
    """A run of a recipe with `changes`, and which of its tickets go to the zoo: by family and mask, of which replicates."""

    recipe: str
    tickets: dict[str, tuple[int, ...]]
    changes: tuple[str, ...] = ()


FIVE, ONE = (1, 2, 3, 4, 5), (1,)
SOURCES = {
    "digits-resnet20": Source(
        "zoo-digits",
        {
            "rounds/round-05": FIVE[:3],
            **dict.fromkeys(("oneshot/q90", "snip/q90", "synflow/q90", "gmp/q90", "rigl/q90"), ONE),
            **dict.fromkeys(("channels/q70", "two-of-four/q50"), ONE),
        },
    ),
    "digits-mobilenet": Source("zoo-mobilenet", {"rounds/round-03": ONE}),
    "mnist-lenet": Source("zoo-lenet", {"rounds/round-09": FIVE}),
    "fashion-lenet": Source("zoo-lenet", {"rounds/round-09": FIVE[:3]}, ("data.source=tfds:fashion_mnist",)),
    "cifar10-resnet20": Source("zoo-cifar10", {"rounds/round-06": ONE}),
}


def zoo(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Runs whose names begin so; default: all.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where tickets go.")] = ROOT / "zoo",
) -> None:
    """Train small tickets and write them to zoo/."""
    chosen = [name for name in SOURCES if not names or name.startswith(tuple(names))]
    if not chosen:
        raise InputError(f"none of the zoo's runs begins so; there are {', '.join(SOURCES)}")
    for name in chosen:
        make(name, SOURCES[name], out)
    page = out / "README.md"
    if page.exists():
        files.write_text(page, page.read_text().split("| ticket |")[0] + table(out) + "\n")


def make(name: str, source: Source, out: Path) -> None:
    place = Path("runs", f"zoo-{name}")
    changes = [word for change in source.changes for word in ("--set", change)]
    imp("run", str(ROOT / "pipelines" / f"{source.recipe}.toml"), "--run", str(place), *changes)
    run = open_run(place, must_exist=True)
    for path, mask, replicate in tickets(name, source):
        family = mask.split("/")[0]
        (ticket,) = (found.parent.name for found in run.replicate(replicate).folder.glob(f"{mask}-step-*/ticket"))
        export(run, Reporter(quiet=True), f"{family}/{ticket}", "zip", out / path, replicate, license=LICENSE)
        print(f"{out / path}: {(out / path).stat().st_size:,} bytes")


def tickets(name: str, source: Source) -> Iterator[tuple[Path, str, int]]:
    """The file of each ticket of a run, its mask and its replicate."""
    for mask, replicates in source.tickets.items():
        for replicate in replicates:
            number = f"-{replicate}" if len(replicates) > 1 else ""
            yield Path(f"{name}-{mask.replace('/', '-')}{number}.zip"), mask, replicate


def table(place: Path) -> str:
    """The tickets of the zoo, a line for each run and mask."""
    lines: dict[str, dict[str, str]] = {}
    for path in sorted(place.glob("*.zip")):
        with unzipped(path) as folder:
            ticket = open_ticket(folder)
        accuracy = f"{100 * ticket.record.result.reached('test'):.1f}"
        kind = re.sub(r"-\d$", "", path.stem)
        line = lines.setdefault(kind, {"ticket": f"`{kind}.zip`", **told(listed(ticket)), "test, %": ""})
        if kind != path.stem:
            line["ticket"] = f"`{kind}-1.zip` .. `{path.name}`"
        line["test, %"] += f"{', ' if line['test, %'] else ''}{accuracy}"
    return markdown.table(list(lines.values()))


def told(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "kept": f"{100 * row['density']:.1f} %",
        "validation, points from dense": interval(row["difference"], row["low"], row["high"]),
        "replicates": str(row["replicates"]),
        "verdict": row["verdict"] or "",
    }


if __name__ == "__main__":
    cli.main(zoo)
