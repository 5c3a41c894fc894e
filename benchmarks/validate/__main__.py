"""Is the library right? Every part, or some, and a page about them.

python -m benchmarks.validate                       # all but the mutations: half an hour at most on two cores
python -m benchmarks.validate --only sbc geweke     # these parts; what is stored of the others stays
python -m benchmarks.validate --only mutations      # half an hour; goes on where it was interrupted
python -m benchmarks.validate --page                # write the tables of docs/trust.md from what is stored
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

from benchmarks.validate import exact, geweke, invariance, known, mutations, page, sbc, stored  # noqa: E402

PARTS = {
    "sbc": sbc.run,
    "geweke": geweke.run,
    "exact": exact.run,
    "known": known.run,
    "invariance": invariance.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "mutations"], default=list(PARTS), metavar="PART")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "validation.json")
    parser.add_argument("--mutant", default="", help="only the mutations with this in their names, stored or not")
    parser.add_argument("--page", action="store_true", help="write the page, and run nothing")
    options = parser.parse_args()
    if options.page:
        print(page.write(options.json, ROOT / "results", ROOT / "docs" / "trust.md"))
        return 0
    failed = []
    for part in options.only:
        began = time.perf_counter()
        print(f"{part}:", flush=True)
        if part == "mutations":
            lines = mutations.run(options.json, options.mutant)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lines = PARTS[part]()
            stored.add(options.json, part, lines, time.perf_counter() - began)
        ok = stored.passed(part, lines)
        failed += [] if ok else [part]
        print(f"{part} {'passed' if ok else 'FAILED'} ({time.perf_counter() - began:.0f} s)", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
