"""Hold what is pinned in requirements.lock against known vulnerabilities, by pip-audit in an environment of its own.

Ends with status 1 where one is known, and says how many packages could be looked up: without a network, none.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path

TOOL = "pip-audit==2.10.1"
ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".venv" / "audit"


def main() -> int:
    tool = PLACE / "bin" / "pip-audit"
    if not tool.exists():
        venv.create(PLACE, with_pip=True)
        pip = [PLACE / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", TOOL]
        if subprocess.run(pip, check=False, capture_output=True).returncode:
            return nothing(f"{TOOL} could not be installed, perhaps there is no network")
    command = [tool, "--requirement", "requirements.lock", "--no-deps", "--disable-pip", "--format", "json"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    try:
        packages = json.loads(ran.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        return nothing((ran.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1])
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        return nothing(f"the index knows none of {len(packages)} packages")
    known = [(package, flaw) for package in audited for flaw in package["vulns"]]
    for package, flaw in known:
        print(f"{package['name']} {package['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions'])}")
    print(f"audit: {len(audited)} of {len(packages)} packages looked up, {len(known)} known vulnerabilities.")
    return int(bool(known))


def nothing(why: str) -> int:
    print(f"audit: NOTHING WAS AUDITED: {why}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
