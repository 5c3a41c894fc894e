"""Generalized posterior calibration: the learning rate at which the credible sets cover at the level."""

from typing import ClassVar

from calibayes.methods.base import Method
from calibayes.solve.verify import verify


class GPC(Method):
    """Generalized posterior calibration, `method="gpc"`, the default.

    Targets the coverage of the credible sets on bootstrap replicates of the data: it solves for the learning rate at
    which they contain the point estimate as often as the level states.

    Notes
    -----
    Needs the posterior of every replicate. Like the percentile bootstrap it is first-order correct: with few
    observations per parameter the sets cover the true parameter less often than the level states, because they neglect
    that the covariance of the estimate is itself estimated (see `StudentizedGPC`).

    References
    ----------
    Syring and Martin (2019), Calibrating general posterior credible regions, Biometrika 106, 479-486.
    Tanaka (2024), arXiv:2404.16528.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.GPC().name
    'gpc'
    """

    name: ClassVar[str] = "gpc"

    def solve(self, solver, problem, eta):
        return verify(solver, solver.solve_from_initial(problem, eta))

    def solve_again(self, solver, problem, iterate, draws):  # noqa: ARG002
        start = solver.start_at(iterate.state, iterate.sampled_eta)
        return solver.search(problem, start, "search", "solution")
