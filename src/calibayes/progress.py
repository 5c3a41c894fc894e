"""Display of a running calibration: one live line on a terminal or in a notebook, nothing in a pipe."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from calibayes._backend.distributed import is_main_process
from calibayes._backend.jit import compiling_since
from calibayes.solve.progress import Progress


class LiveLine(Progress):
    """Show iteration, learning rate, coverage, effective sample size and time, with a bar for the present phase.

    Parameters
    ----------
    show : bool
        Whether to show anything.
    n_draws : int
        Number of particles per replicate, by which the displayed effective sample size is divided.
    """

    def __init__(self, show: bool, n_draws: int):
        self._n_draws = n_draws
        self._display: RichProgress | None = None
        if not (show and is_main_process()):
            return
        console = Console(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            return
        self._display = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=18),
            PhaseColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._display.add_task("starting", total=1.0, phase="")

    def __enter__(self) -> "LiveLine":
        if self._display is not None:
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def phase(self, name: str) -> None:
        self._update(phase=name, completed=0.0)

    def fraction_done(self, done: float) -> None:
        self._update(completed=done)

    def iteration(self, number: int, eta: float, coverage: float, ess: float) -> None:
        line = f"iteration {number:3d}  eta {eta:.4g}  coverage {coverage:.3f}  ESS {ess / self._n_draws:4.0%}"
        self._update(description=line)

    def _update(self, **fields: Any) -> None:
        if self._display is not None:
            self._display.update(self._task, **fields)


class PhaseColumn(ProgressColumn):
    """Show the present phase, or for how long a program has been compiling."""

    def render(self, task: Task) -> Text:
        """Return the text of the column; rich calls this ten times a second."""
        since = compiling_since()
        phase = task.fields["phase"] if since is None else f"compiling, {time.monotonic() - since:.0f} s"
        return Text(phase, style="dim")
