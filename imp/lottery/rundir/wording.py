"""How a metric and the examples that it is a mean over are called where people read them."""

import re

ACCURACY = "accuracy"  # the metric that decides in classification, whose examples are images


def title(metric: str) -> str:
    """The name of a metric in sentences: `accuracy`, `ROUGE-1` for rouge1, `within 2` for within_2."""
    return re.sub(r"\brouge", "ROUGE-", metric.replace("_", " "))


def value(metric: str, share: float) -> str:
    """A value (0 .. 1) of the deciding `metric`: `91.23%` of an accuracy, `41.50% ROUGE-1` of another."""
    return f"{share:.2%}" if metric == ACCURACY else f"{share:.2%} {title(metric)}"


def part(metric: str, share: float) -> str:
    """A value with what stands before `the test examples`: `91.23% of`, `41.50% ROUGE-1 on`."""
    return f"{value(metric, share)} {'of' if metric == ACCURACY else 'on'}"


def example(metric: str) -> str:
    """One example of a run with this deciding metric; an `s` more makes them many."""
    return "image" if metric == ACCURACY else "example"


def worded(text: str, metric: str, **others: str) -> str:
    """`text` with words for `{metric}`, `{values}` and `{example}`, `{Metric}` and `{Values}`, and with `others`."""
    words = {"metric": title(metric), "values": "accuracies" if metric == ACCURACY else f"values of {title(metric)}"}
    words |= {key.title(): word[:1].upper() + word[1:] for key, word in words.items()}
    return text.format(example=example(metric), **words, **others)
