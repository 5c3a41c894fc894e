"""Checks of user input, all before anything is compiled.

Every error names the argument, the value received and a remedy.

- `data`: the observations.
- `parts`: data that are read in parts.
- `functions`: loss and prior density, traced by JAX without compilation.
- `settings`: level, bootstrap, number of particles, search, estimate and seed.
- `start`: initial draws, and the loss at them.
"""
