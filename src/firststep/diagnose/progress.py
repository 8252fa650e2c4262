"""How far a diagnosis is, and how long it will take, once that is more than a few seconds."""

import sys
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

# Seconds that pass in silence.
PATIENCE = 3.0


@dataclass
class Progress:
    """Counts parts of the work; on a terminal a bar, elsewhere lines that get rarer; nothing if it is not wanted."""

    total: float
    wanted: bool
    done: float = 0.0
    _begun: float = field(default_factory=monotonic)
    _next: float = PATIENCE
    _bar: Any = None

    def __enter__(self) -> Self:
        if self.wanted and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar
            from rich.progress import TimeRemainingColumn

            columns = (*Bar.get_default_columns()[:-1], TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.add_task("firststep diagnose", total=self.total)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            if error[0] is None:
                # Parts that a table does not need are done too.
                self._bar.update(self._bar.task_ids[0], completed=self.total)
            self._bar.stop()

    def tick(self, parts: float = 1.0) -> None:
        """Some parts are done; say so if all of them take longer than the patience."""
        self.done += parts
        if not self.wanted:
            return
        passed = monotonic() - self._begun
        left = passed * max(self.total / self.done - 1, 0.0)
        if self._bar is not None:
            if passed + left > PATIENCE and not self._bar.live.is_started:
                self._bar.start()
            self._bar.update(self._bar.task_ids[0], completed=self.done)
        elif passed >= self._next and left > 0:
            share = self.done / self.total
            sys.stderr.write(f"note: {share:.0%} done, about {left:.0f} s left\n")
            sys.stderr.flush()
            self._next = 2 * passed
