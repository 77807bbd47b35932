"""What a person sees while a run works: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from worker.contract import Answered, Result

_PLAIN_EVERY = 10.0  # seconds between plain lines


@dataclass
class Tally:
    """What this process has seen of the run, for rates; the run folder has the counts that last."""

    total: int
    done_before: int
    answered: int = 0
    failed: int = 0
    input_tokens: int = 0
    computed_tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    first_result: float | None = None

    def add(self, result: Result) -> None:
        self.first_result = self.first_result or time.monotonic()
        if isinstance(result.outcome, Answered):
            self.answered += 1
            self.input_tokens += result.outcome.usage.input_tokens
            self.computed_tokens += result.outcome.usage.computed_tokens
        else:
            self.failed += 1

    @property
    def done(self) -> int:
        return self.done_before + self.answered + self.failed

    @property
    def left(self) -> int:
        return max(0, self.total - self.done)

    @property
    def per_minute(self) -> float:
        """Documents a minute since the run began working, model loading included while nothing is done yet."""
        seconds = time.monotonic() - self.started
        return 60 * (self.answered + self.failed) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        rate = self.per_minute
        return 60 * self.left / rate if rate > 0 else None

    def line(self) -> str:
        shared = 1 - self.computed_tokens / self.input_tokens if self.input_tokens else 0.0
        parts = [
            f"{self.done_before + self.answered} answered",
            f"{self.failed} failed",
            f"{self.left} left",
            f"{self.per_minute:.1f} documents/min",
            f"{self.computed_tokens:,} tokens computed, {self.input_tokens - self.computed_tokens:,} saved "
            f"by sharing ({shared:.0%})",
        ]
        if self.left and (seconds := self.seconds_left) is not None:
            parts.append(f"about {duration(seconds)} left")
        return " · ".join(parts)


class ProgressDisplay:
    """Shows a tally; `note` tells something that happened."""

    def __init__(self, tally: Tally, console: Console, *, quiet: bool) -> None:
        self._tally, self._console, self._quiet = tally, console, quiet
        self._live: Progress | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        if not self._quiet and self._console.is_terminal:
            self._live = Progress(
                SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), console=self._console
            )
            self._task = self._live.add_task("loading the model", total=self._tally.total)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self.update()
            self._live.stop()

    def update(self) -> None:
        waiting = self._tally.first_result is None
        if self._live:
            line = "loading the model, waiting for the first answers" if waiting else self._tally.line()
            self._live.update(self._task, completed=self._tally.done, description=line)
        elif not self._quiet and time.monotonic() - self._printed >= _PLAIN_EVERY:
            self._printed = time.monotonic()
            line = "waiting for the first answers" if waiting else self._tally.line()
            self._console.print(line, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, highlight=False, style="yellow")


def duration(seconds: float) -> str:
    """Seconds as a person says them: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
