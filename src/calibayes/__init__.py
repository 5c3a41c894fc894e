"""Learning rates of generalized (Gibbs) posteriors, chosen so that credible sets cover as often as they claim.

Start with `GibbsModel`, a loss out of `losses` and a prior out of `priors`, and `calibrate`.
"""

from calibayes import bootstrap as bootstrap
from calibayes import datasets as datasets
from calibayes import diagnostics as diagnostics
from calibayes import interop as interop
from calibayes import kernels as kernels
from calibayes import losses as losses
from calibayes import methods as methods
from calibayes import plots as plots
from calibayes import priors as priors
from calibayes import regions as regions
from calibayes._backend.devices import mesh as mesh
from calibayes._backend.distributed import DistributedError as DistributedError
from calibayes._backend.program_cache import set_cache_dir as set_cache_dir
from calibayes._backend.warnings import CalibrationWarning as CalibrationWarning
from calibayes._backend.warnings import CheckpointError as CheckpointError
from calibayes._backend.warnings import LongRunWarning as LongRunWarning
from calibayes._backend.warnings import NotConvergedWarning as NotConvergedWarning
from calibayes._core.curve import Coverage as Coverage
from calibayes._core.parts import Parts as Parts
from calibayes._core.status import Code as Code
from calibayes._core.status import Diagnostic as Diagnostic
from calibayes._core.status import Severity as Severity
from calibayes._core.status import Status as Status
from calibayes.calibrate import calibrate as calibrate
from calibayes.calibrate import gpc_mcmc as gpc_mcmc
from calibayes.calibrate import gpc_smc as gpc_smc
from calibayes.compare import Comparison as Comparison
from calibayes.compare import compare as compare
from calibayes.io import load as load
from calibayes.model import GibbsModel as GibbsModel
from calibayes.result import Intervals as Intervals
from calibayes.result import Result as Result
from calibayes.samplers import MCMC as MCMC
from calibayes.samplers import SMC as SMC
from calibayes.samplers import Transport as Transport
from calibayes.solve.bracket import Bracket as Bracket
from calibayes.solve.robbins_monro import RobbinsMonro as RobbinsMonro
from calibayes.tables.fit import fit as fit

__version__ = "0.1.0.dev0"

__all__ = [
    "MCMC",
    "SMC",
    "Bracket",
    "CalibrationWarning",
    "CheckpointError",
    "Code",
    "Comparison",
    "Coverage",
    "Diagnostic",
    "DistributedError",
    "GibbsModel",
    "Intervals",
    "LongRunWarning",
    "NotConvergedWarning",
    "Parts",
    "Result",
    "RobbinsMonro",
    "Severity",
    "Status",
    "Transport",
    "bootstrap",
    "calibrate",
    "compare",
    "datasets",
    "diagnostics",
    "fit",
    "gpc_mcmc",
    "gpc_smc",
    "interop",
    "kernels",
    "load",
    "losses",
    "mesh",
    "methods",
    "plots",
    "priors",
    "regions",
    "set_cache_dir",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
