"""How a calibration ended, as data: a status, and typed diagnostics that say what a user should know about the run.

Text is presentation. Reports, exit codes, warnings and tests look at `Status`, `Code` and `Severity`; no code reads
a message.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum


class Status(Enum):
    """How the search for the learning rate ended. The value of each member is its message.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.Status.CONVERGED.value
    'The credible sets cover at the requested level on the bootstrap replicates.'
    """

    CONVERGED = "The credible sets cover at the requested level on the bootstrap replicates."
    COMPUTED = "The method set the learning rate; coverage on the bootstrap replicates is reported, not solved for."
    MAX_ITERATIONS = "The search stopped at its maximum number of iterations."
    NO_CROSSING = "Coverage does not cross the requested level in the searched range of learning rates."
    NOT_REACHED = "The sampler did not reach the learning rate that the search or the method asked for."
    UNRELIABLE = "The reported learning rate cannot be relied on."
    TIME_LIMIT = "The calibration stopped at its time limit; this is the best result so far."
    INTERRUPTED = "The calibration was interrupted; this is the best result so far."

    @property
    def is_success(self) -> bool:
        """Whether the learning rate is the one that the method asks for, and can be relied on."""
        return self in (Status.CONVERGED, Status.COMPUTED)


class Severity(IntEnum):
    """How much a diagnostic matters: a note, something to check, or a reason not to rely on the answer.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.Severity.WARNING < cb.Severity.ERROR
    True
    """

    INFO = 0
    WARNING = 1
    ERROR = 2


class Code(StrEnum):
    """What a diagnostic is about.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.Code.REPAIRED in {finding.code for finding in result.diagnostics} or not len(result.repaired_replicates)
    True
    """

    REPAIRED = "repaired"
    """Replicates with degenerate importance weights, whose posterior was sampled again by a slower sampler (the
    bootstrap counts are unchanged)."""
    DATA_REPAIRED = "data-repaired"
    """Draws on the data with degenerate importance weights, which were sampled again by a slower sampler."""
    DATA_UNRELIABLE = "data-unreliable"
    """The draws on the data do not represent its posterior."""
    ESS_COLLAPSED = "ess-collapsed"
    """Replicates have almost no effective particles."""
    ESS_LOW = "ess-low"
    """The typical effective sample size of a replicate is low."""
    NOT_MIXED = "not-mixed"
    """Particles of some replicates still depend on where they started."""
    NOT_REACHED = "not-reached"
    """Replicates did not reach the learning rate that the search or the method asked for."""
    LEVEL_UNDEFINED = "level-undefined"
    """The critical level of some replicates is NaN."""
    INVALID_LOSS = "invalid-loss"
    """The loss was NaN at some particles."""
    POPULATIONS_DISAGREE = "populations-disagree"
    """Independent populations of initial draws disagree, so that the posterior may have several modes."""
    NO_CROSSING = "no-crossing"
    """Coverage stays on one side of the level in the searched range of learning rates, or varies so irregularly that no
    crossing could be located."""
    SEVERAL_CROSSINGS = "several-crossings"
    """Coverage equals the level at several learning rates of the curve, of which the smallest is reported, or was below
    the level at a smaller learning rate that the search visited outside the curve."""
    MAX_ITERATIONS = "max-iterations"
    """The search used all its iterations."""
    TIME_LIMIT = "time-limit"
    """The calibration used all its time."""
    NOT_INTERPOLATED = "not-interpolated"
    """The learning rate could not be interpolated on the coverage curve and is the last one of the search."""
    ETA_SE_UNKNOWN = "eta-se-unknown"
    """The standard error of the learning rate could not be computed."""
    ETA_UNCERTAIN = "eta-uncertain"
    """The standard error of the learning rate is large."""
    LEVEL_NOT_ATTAINED = "level-not-attained"
    """Coverage jumps past the level, because many replicates are equal data sets; the conservative side is reported."""
    COVERAGE_OFF_LEVEL = "coverage-off-level"
    """The method does not solve for coverage, and coverage on the replicates differs from the level."""
    DRAWS_FAR_FROM_ETA = "draws-far-from-eta"
    """The method computed the learning rate from draws at another one, on which it depends unless posteriors are
    normal."""
    NOT_RESOLVED = "not-resolved"
    """The data, the replicates or the particles do not determine the method's answer as closely as its standard error
    states."""
    DOUBLE_PRECISION = "double-precision"
    """Single precision does not resolve the posterior, so that the calibration was computed in double precision."""
    ROUNDING = "rounding"
    """Rounding errors of the risk are too large at the reported learning rate."""
    FEW_OBSERVATIONS = "few-observations"
    """There are few observations, or few clusters or blocks of them, per parameter for a bootstrap."""
    WEIGHTS_REPEAT = "weights-repeat"
    """Integer weights are taken as numbers of repetitions, of which there are many more than rows."""
    REDUNDANT_COLUMNS = "redundant-columns"
    """Columns of X are constant or collinear, so that only the prior separates their coefficients."""
    NOT_AUDITED = "not-audited"
    """The audit by an independent sampler could not run."""
    AUDIT_FAILED = "audit-failed"
    """An independent sampler disagrees with the particles."""
    FALLBACK = "fallback"
    """Another sampler replaced the one that failed."""
    FALLBACK_FAILED = "fallback-failed"
    """The sampler that should have replaced the one that failed, failed too."""


ABOUT_THE_SAMPLER = frozenset(
    {Code.NOT_AUDITED, Code.AUDIT_FAILED, Code.FALLBACK, Code.FALLBACK_FAILED, Code.ROUNDING, Code.DATA_UNRELIABLE}
)
"""Diagnostics that also hold for another level or region computed from the same particles."""

ABOUT_THE_SEARCH = frozenset(
    {
        Code.NO_CROSSING,
        Code.SEVERAL_CROSSINGS,
        Code.NOT_INTERPOLATED,
        Code.ETA_SE_UNKNOWN,
        Code.LEVEL_NOT_ATTAINED,
        Code.COVERAGE_OFF_LEVEL,
        Code.DRAWS_FAR_FROM_ETA,
        Code.NOT_RESOLVED,
        Code.MAX_ITERATIONS,
        Code.TIME_LIMIT,
    }
)
"""Diagnostics of how the learning rate was found, which do not hold for another one."""


@dataclass(frozen=True)
class Diagnostic:
    """One finding about a run.

    Attributes
    ----------
    code : Code
        What the finding is about.
    severity : Severity
        How much it matters.
    count : int
        Number of replicates or evaluations that it is about; 0 where it is not about a number of them.
    message : str
        The finding as a sentence, with the remedy where there is one.

    Examples
    --------
    >>> import calibayes as cb
    >>> finding = cb.Diagnostic(cb.Code.ESS_LOW, cb.Severity.WARNING, 0, "Use more particles.")
    >>> str(finding)
    'Use more particles.'
    """

    code: Code
    severity: Severity
    count: int
    message: str

    def __str__(self) -> str:
        return self.message


def worst(diagnostics: Iterable[Diagnostic]) -> Severity:
    """Return the largest severity, `Severity.INFO` if there is none."""
    return max((diagnostic.severity for diagnostic in diagnostics), default=Severity.INFO)
