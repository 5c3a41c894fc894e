"""Studies that take longer than a test: `python -m studies.NAME`."""
