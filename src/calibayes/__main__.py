"""Run the command line as `python -m calibayes`."""

from calibayes.cli import app

app()
