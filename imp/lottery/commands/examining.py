"""The command that examines the machine: doctor."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from lottery.commands.options import JsonOption, alone, print_json

MARKS = {"good": "ok", "limited": "!", "broken": "X"}


def doctor(
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of the run directories.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Check devices, drivers, TensorFlow, MPI, Slurm, W&B, disk and locks, and say what to fix."""
    from lottery.commands.findings import doctor

    alone()
    findings = doctor(runs)
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{MARKS[finding.state]:2} {finding.topic}: {finding.text}")
            if finding.remedy:
                print(f"     {finding.remedy}")
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)
