"""What the solver reports while it runs. This one is silent; `calibayes.progress` shows it on a terminal."""


class Progress:
    """Receiver of progress events."""

    def phase(self, name: str) -> None:
        """Report that a phase of the calibration begins."""

    def fraction_done(self, done: float) -> None:
        """Report the completed share of the present phase."""

    def iteration(self, number: int, eta: float, coverage: float, ess: float) -> None:
        """Report a learning rate and its coverage."""
