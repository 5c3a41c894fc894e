"""A search rule: bisection of log eta."""

import math
from dataclasses import dataclass, replace

import calibayes as cb
from calibayes.solve.search import Request, Search, SearchState


@dataclass(frozen=True, kw_only=True)
class BisectionState(SearchState):
    low: float = 0.0  # largest learning rate known to cover too often
    high: float = math.inf  # smallest known to cover too seldom


class Bisection(Search):
    """Halve or double eta until the level is bracketed, then bisect."""

    def init(self, eta):
        return BisectionState(eta=eta, request=Request.REFINED_COVERAGE)

    def update(self, state, evaluation):
        if abs(evaluation.coverage - evaluation.level) < evaluation.tolerance:
            return replace(state, status=cb.Status.CONVERGED)
        covers = evaluation.coverage > evaluation.level
        low, high = (state.eta, state.high) if covers else (state.low, state.eta)
        eta = 2 * low if high == math.inf else high / 2 if low == 0 else math.sqrt(low * high)
        return replace(state, eta=eta, low=low, high=high)


def main(checkpoint=None):
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data, sampler = cb.datasets.median_regression(n=60, seed=0), cb.SMC(n_particles=300, ess_target=0.95)
    options = {"bootstrap": 200, "tolerance": 0.015, "eta_init": 6.0, "seed": 0, "progress": False}
    return cb.calibrate(model, data, sampler=sampler, search=Bisection(), checkpoint=checkpoint, **options)


if __name__ == "__main__":
    print(main())
