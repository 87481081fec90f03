"""Progress for people: a bar on a terminal, plain lines in a log file. All on standard error; results go to standard output."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

LINE_SECONDS = 30.0


class Reporter:
    """Says what is going on. `prefix` names the speaker among several (`rank 2: `); `quiet` says nothing. `beat` is called,
    quiet or not, whenever what is counted has come further."""

    def __init__(self, prefix: str = "", quiet: bool = False, beat: Callable[[], None] = lambda: None):
        self.prefix, self.quiet, self.beat = prefix, quiet, beat
        self.bars = not prefix and not quiet and sys.stderr.isatty()

    def beating(self, beat: Callable[[], None]) -> "Reporter":
        """The same, which calls `beat`."""
        return Reporter(self.prefix, self.quiet, beat)

    def say(self, message: str) -> None:
        if not self.quiet:
            print(f"{self.prefix}{message}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def counting(self, title: str, total: int, unit: str = "steps") -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the number of things just done, of `total` in all."""
        with _bar(title, total, unit) if self.bars else contextlib.nullcontext(self._lines(title, total, unit)) as advance:

            def counted(count: int) -> None:
                advance(count)
                self.beat()

            yield counted

    def _lines(self, title: str, total: int, unit: str) -> Callable[[int], None]:
        began = spoken = time.monotonic()
        done = 0

        def advance(count: int) -> None:
            nonlocal done, spoken
            done += count
            now = time.monotonic()
            if now - spoken >= LINE_SECONDS:
                rate = done / (now - began)
                left = duration((total - done) / rate)
                self.say(f"{title}: {done} of {total} {unit}, {rate:.0f} {unit}/s, {left} left")
                spoken = now

        return advance


@contextlib.contextmanager
def _bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[unit]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total, unit=unit, rate="")
        began = time.monotonic()
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress.update(task, advance=count, rate=f"{done / max(time.monotonic() - began, 1e-9):.0f}/s")

        yield advance


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
