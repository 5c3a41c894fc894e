"""The most memory a process that calibrates ever held, against the array of all losses that it never makes."""

import subprocess
import sys
from pathlib import Path

from benchmarks.speed.measured import Measured, Ratio
from benchmarks.speed.problems import Sizes

# VmHWM and not ru_maxrss, which a process inherits from the one that started it.
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


def measure(sizes: Sizes) -> Measured:
    found = Measured(quick=sizes.quick)
    if not Path("/proc/self/status").exists():
        found.skipped.append("peak memory is read from /proc, which is not here.")
        return found
    before = _peak("")
    found.figures["imported"] = {"GB": before}
    cases = {
        "transport, median regression": (_TRANSPORT, sizes.large, 4 * sizes.rows, sizes.particles),
        "GPC-SMC, heart disease SVM": (_SMC, 462, sizes.rows, sizes.svm_particles),
    }
    for name, (call, n, b, m) in cases.items():
        ours = _peak(call.format(n=n, b=b, m=m))
        what = f"{name}, N {n:,}, B {b:,}, M {m:,}"
        note = f"{before:.2f} GB of it as soon as calibayes is imported"
        found.ratios.append(Ratio(what, "array of all losses", ours, 4e-9 * n * b * m, note=note, unit="GB"))
    return found


def _peak(call: str) -> float:
    program = _PROGRAM.format(call=call)
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[-1]) / 1e6
