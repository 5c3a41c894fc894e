"""Value at risk and expected shortfall jointly, by a loss of Fissler and Ziegel."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from calibayes._backend.arguments import parameters
from calibayes._backend.functions import Numbers
from calibayes._core.loss import Generic


class FisslerZiegel(Generic):
    r"""Loss whose expectation is minimised by value at risk and expected shortfall jointly.

    Parameters
    ----------
    alpha : float
        Probability of the tail, between 0 and 1, such as 0.05.

    Notes
    -----
    Data are returns y, whose lower tail is considered, or `(X, y)`. The parameters are the quantile (value at risk) v
    at `alpha` and the mean e of the returns below it (expected shortfall), both negative. With `(X, y)` v
    and e are linear functions of the columns of X; the first half of the parameters are the coefficients of v, the
    second half those of e. The loss

    $$ \log(-e) + \frac{v}{e} - \frac{1(y \le v)\,(v - y)}{\alpha\,e} $$

    (FZ0) is, up to an additive constant and a factor, the only loss of Fissler and Ziegel to which another unit of the
    returns merely adds a constant, so that eta does not depend on the unit. It is infinite unless $e \le v < 0$.
    Returns are serially dependent in their volatility: use `bootstrap.Block`.

    References
    ----------
    Fissler and Ziegel (2016), Higher order elicitability and Osband's principle, Annals of Statistics 44, 1680-1707.
    Patton, Ziegel and Chen (2019), Dynamic semiparametric models for expected shortfall (and value-at-risk), Journal of
    Econometrics 211, 388-413.
    Dimitriadis and Bayer (2019), A joint quantile and expected shortfall regression framework, Electronic Journal of
    Statistics 13, 1823-1871.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> loss = cb.losses.FisslerZiegel(0.5)
    >>> round(float(loss(jnp.array([-1.0, -2.0]), jnp.array(-3.0))), 4)
    3.1931
    >>> model = cb.GibbsModel(loss, cb.priors.Normal(scale=10.0), dim=2)
    """

    alpha: Float[Array, ""] = None  # type: ignore[assignment]

    def __init__(self, alpha: Numbers):
        self.alpha = parameters("alpha", alpha)
        if self.alpha.ndim != 0 or not 0 < float(self.alpha) < 1:
            raise ValueError(f"alpha must be a number between 0 and 1, both excluded; got {alpha}.")
        self.fn, self.sign = _loss, 1

    def __call__(self, theta: Float[Array, " K"], datum: PyTree[Array]) -> Float[Array, ""]:
        return _loss(theta, datum, self.alpha)


def _loss(theta: Float[Array, " K"], datum: PyTree[Array], alpha: Float[Array, ""]) -> Float[Array, ""]:
    if isinstance(datum, tuple | list):
        x, y = datum
        quantile, shortfall = x @ theta[: len(x)], x @ theta[len(x) :]
    else:
        y, quantile, shortfall = datum, theta[0], theta[1]
    valid = (shortfall <= quantile) & (quantile < 0)
    # Valid values in place of others, whose logarithm would be NaN.
    shortfall = jnp.where(valid, shortfall, -1.0)
    excess = jnp.maximum(quantile - y, 0.0)
    value = jnp.log(-shortfall) + quantile / shortfall - excess / (alpha * shortfall)
    return jnp.where(valid, value, jnp.inf)
