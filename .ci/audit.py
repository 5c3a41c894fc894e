"""Check the packages pinned in requirements.lock for known vulnerabilities, by pip-audit in its own environment.

Exits with status 1 if a vulnerability is known. Prints how many packages could be looked up; without a network, none.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path

TOOL = "pip-audit==2.10.1"
ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv" / "audit"


def main() -> int:
    """Run the audit and return the exit status."""
    tool = ENVIRONMENT / "bin" / "pip-audit"
    if not tool.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [ENVIRONMENT / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", TOOL]
        if subprocess.run(pip, check=False, capture_output=True).returncode:
            return report_no_audit(f"{TOOL} could not be installed, perhaps because there is no network")
    command = [tool, "--requirement", "requirements.lock", "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        return report_no_audit((done.stderr.strip().splitlines() or ["pip-audit printed no result"])[-1])
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        return report_no_audit(f"the index has none of {len(packages)} packages")
    known = [(package, vulnerability) for package in audited for vulnerability in package["vulns"]]
    for package, vulnerability in known:
        fixes = ", ".join(vulnerability["fix_versions"])
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixes}")
    print(f"audit: {len(audited)} of {len(packages)} packages looked up, {len(known)} known vulnerabilities.")
    return int(bool(known))


def report_no_audit(reason: str) -> int:
    """Print why no package was audited; a missing network is not an error."""
    print(f"audit: NOTHING WAS AUDITED: {reason}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
