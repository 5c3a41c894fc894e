"""Run statistical tests of the library and write the page about them.

python -m benchmarks.validate                       # every part except the mutants; about 40 minutes on two cores
python -m benchmarks.validate --only sbc geweke     # these parts; stored results of the others are kept
python -m benchmarks.validate --only mutants        # hours the first time; continues where it was interrupted
python -m benchmarks.validate --only adversarial --seed 7   # draw the constants of difficult models from this seed
python -m benchmarks.validate --page                # write the tables of docs/trust.md from the stored results
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

from benchmarks.common import RESULTS, ROOT

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

from benchmarks.validate import exact, geweke, invariance, known, mutation_run, page, sbc, store
from benchmarks.validate.adversarial import run as adversarial

PARTS = {
    "sbc": sbc.run,
    "geweke": geweke.run,
    "exact": exact.run,
    "known": known.run,
    "invariance": invariance.run,
    adversarial.PART: adversarial.run,
}


def main() -> int:
    """Run the command; return the number of parts that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = [*PARTS, mutation_run.PART]
    parser.add_argument("--only", nargs="+", choices=choices, default=list(PARTS), metavar="PART")
    parser.add_argument("--json", type=Path, default=RESULTS / "validation.json", help="file of stored results")
    parser.add_argument("--mutant", default="", help="run the mutants whose name contains this text, stored or not")
    parser.add_argument("--seed", type=int, help="seed of the constants of drawn models; default: a fresh one")
    parser.add_argument("--page", action="store_true", help="write the page and run nothing")
    options = parser.parse_args()
    if options.page:
        print(page.write(options.json, RESULTS, ROOT / "docs" / "trust.md"))
        return 0
    failed = []
    for part in options.only:
        start = time.perf_counter()
        print(f"{part}:", flush=True)
        if part == mutation_run.PART:
            lines = mutation_run.run(options.json, options.mutant)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lines = adversarial.run(options.seed) if part == adversarial.PART else PARTS[part]()
            store.add(options.json, part, lines, time.perf_counter() - start)
        passed = store.passed(part, lines)
        failed += [] if passed else [part]
        print(f"{part} {'passed' if passed else 'FAILED'} ({time.perf_counter() - start:.0f} s)", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
