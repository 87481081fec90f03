"""The answer in sentences."""

from lottery.results.block import Block
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    """What is said of each series of tickets."""
    told = [sentence.partition(": ") for sentence in findings.headline.series]
    return Block("words", "In words", [f"**{place}:** {answer}" for place, _, answer in told]) if told else None
