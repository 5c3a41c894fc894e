"""Peak memory of a process that calibrates, against the array of all losses, which the engine never stores."""

import subprocess
import sys
from pathlib import Path

from benchmarks.speed.measurement import Measurements, Ratio
from benchmarks.speed.problems import Sizes

# VmHWM instead of ru_maxrss, because a process inherits the latter from its parent.
_PROGRAM = """
import re, warnings
import calibayes as cb
from benchmarks.speed.problems import heart_disease, median_regression
warnings.simplefilter("ignore")
{call}
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
_TRANSPORT = """
data = median_regression({n})
cb.calibrate(data.model, (data.x, data.y), sampler=cb.Transport(n_particles={m}), bootstrap={b}, seed=0, progress=False)
"""
_SMC = """
data = heart_disease()
options = dict(n_particles={m}, bootstrap={b}, eta_init=0.15, max_iterations=3, progress=False)
cb.gpc_smc(data.model, (data.x, data.y), seed=0, **options)
"""


def measure(sizes: Sizes) -> Measurements:
    """Measure the peak memory of one calibration by transport and one by GPC-SMC."""
    measurements = Measurements(quick=sizes.quick)
    if not Path("/proc/self/status").exists():
        measurements.skipped.append("peak memory, because this system has no /proc/self/status.")
        return measurements
    imported = _peak("")
    measurements.figures["imported"] = {"GB": imported}
    cases = {
        "transport, median regression": (_TRANSPORT, sizes.large, 4 * sizes.replicates, sizes.particles),
        "GPC-SMC, heart disease SVM": (_SMC, 462, sizes.replicates, sizes.svm_particles),
    }
    for name, (call, n, b, m) in cases.items():
        ours = _peak(call.format(n=n, b=b, m=m))
        case = f"{name}, N {n:,}, B {b:,}, M {m:,}"
        note = f"{imported:.2f} GB of it after `import calibayes`"
        measurements.ratios.append(Ratio(case, "array of all losses", ours, 4e-9 * n * b * m, note=note, unit="GB"))
    return measurements


def _peak(call: str) -> float:
    """Return the peak memory of a fresh process in GB."""
    program = _PROGRAM.format(call=call)
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[-1]) / 1e6
