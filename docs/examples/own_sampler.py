"""A sampler: exact draws for the mean under squared loss and a normal prior, where every posterior is normal."""

from collections import namedtuple

import jax
import numpy as np

import calibayes as cb
from calibayes.samplers.base import Sampler, SamplerInfo

State = namedtuple("State", ["particles", "key"])


class Exact(Sampler):
    def size(self, dim):
        return 2000

    def init(self, key, target, initial, eta):
        counts, residual = target.counts.to_array(), target.data[1].reshape(-1)  # (N, B); y - X @ target.reference
        precision = eta * counts.sum(0) + target.prior.scale**-2
        shift = eta * residual @ counts - (target.reference - target.prior.loc) * target.prior.scale**-2
        noise = jax.random.normal(key, (1, target.n_replicates, self.size(1))) * precision[None, :, None] ** -0.5
        return State(target.evaluate((target.reference + shift / precision)[None, :, None] + noise), key)

    def move(self, target, state, eta, on_step):
        return self.init(state.key, target, None, eta)

    def info(self, state, eta):
        none = np.zeros(len(state.particles.risk), bool)
        return SamplerInfo(none, none, invalid=0, steps=1, acceptance=1.0, ess=np.full(len(none), 2000.0))


def main(checkpoint=None):
    data = np.ones((80, 1)), np.random.default_rng(0).normal(1.0, 2.0, 80)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=10.0))
    return cb.calibrate(model, data, sampler=Exact(), bootstrap=200, seed=0, checkpoint=checkpoint)


if __name__ == "__main__":
    print(main())
