"""Run `python -m benchmarks.speed`."""

from benchmarks.speed.cli import app

if __name__ == "__main__":
    app(prog_name="python -m benchmarks.speed")
