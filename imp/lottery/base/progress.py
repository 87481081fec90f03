"""Progress for people: a bar on a terminal, plain lines in a log file. All on standard error; results go to standard output."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from lottery.base.errors import printable

LINE_SECONDS = 30.0


class Reporter:
    """Says what is going on. `prefix` names the speaker among several (`rank 2: `); `quiet` says nothing. `beat` is called,
    quiet or not, whenever what is counted has come further (with False), or is `saved` (with True). What is to be said `once`
    is handed to `pass_on`, where there is a process that speaks for all."""

    def __init__(
        self,
        prefix: str = "",
        quiet: bool = False,
        beat: Callable[[bool], None] | None = None,
        pass_on: Callable[[str], None] | None = None,
    ):
        self.prefix, self.quiet, self.beat, self.pass_on = prefix, quiet, beat, pass_on
        self.bars = not prefix and not quiet and sys.stderr.isatty()
        self._said: set[str] = set()

    def of_rank(self, beat: Callable[[bool], None], pass_on: Callable[[str], None]) -> "Reporter":
        """The same, of a process that works for another."""
        return Reporter(self.prefix, self.quiet, beat, pass_on)

    def silent(self) -> "Reporter":
        """The same, which counts without showing it."""
        return _Silent(self.prefix, self.quiet, self.beat, self.pass_on)

    def saved(self) -> None:
        """What was counted so far need not be done again, should this process die."""
        self._beat(saved=True)

    def _beat(self, saved: bool = False) -> None:
        if self.beat:
            self.beat(saved)

    def say(self, message: str) -> None:
        if not self.quiet:
            print(printable(f"{self.prefix}{message}"), file=sys.stderr, flush=True)

    def once(self, message: str) -> None:
        """Say what holds for a whole command, in however many processes: only the first time."""
        if self.pass_on:
            self.pass_on(message)
        elif message not in self._said:
            self._said.add(message)
            self.say(message)

    @contextlib.contextmanager
    def counting(self, title: str, total: int, unit: str = "steps") -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the number of things just done, of `total` in all."""
        began = spoken = time.monotonic()
        done = 0
        with _bar(title, total, unit) if self.bars else contextlib.nullcontext(None) as show:

            def counted(count: int) -> None:
                nonlocal done, spoken
                done, now = done + count, time.monotonic()
                rate = done / max(now - began, 1e-9)
                if show:
                    show(done, rate)
                elif now - spoken >= LINE_SECONDS:
                    left = duration((total - done) / rate)
                    self.say(f"{title}: {done} of {total} {unit}, {rate:.0f} {unit}/s, {left} left")
                    spoken = now
                self._beat()

            yield counted


class _Silent(Reporter):
    @contextlib.contextmanager
    def counting(self, title: str, total: int, unit: str = "steps") -> Iterator[Callable[[int], None]]:
        yield lambda count: self._beat()


@contextlib.contextmanager
def _bar(title: str, total: int, unit: str) -> Iterator[Callable[[int, float], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    texts = ("{task.description}", "{task.completed}/{task.total} {task.fields[unit]}", "{task.fields[rate]}")
    named, count, rate = (TextColumn(text, markup=False) for text in texts)
    columns = (named, BarColumn(), count, rate, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(printable(title), total=total, unit=unit, rate="")
        yield lambda done, rate: progress.update(task, completed=done, rate=f"{rate:.0f}/s")


def duration(seconds: float) -> str:
    """`42 s`, `3 min 10 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count_of(count: int, noun: str) -> str:
    """Such as `1 thread`, `2 threads`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
