"""On paper: a calibration by transport on many devices, from what was measured on one.

Every pass over the observations evaluates the risk of some particles on some rows: `2 K + 4` operations for each
particle and observation, shared out evenly; then one sum over devices of a number for each particle. The rest, which
every device does for itself, takes what a calibration of a few hundred observations takes. What the host does with the
data beforehand, every process does for all of them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from studies.tables import Table

LINK = 50e9
"""Bytes a second from one device to another machine's: a 400 Gb/s port each, by its data sheet."""
MESSAGE = 5e-6
"""Seconds that a message takes however short: the usual figure for such a network."""
_SETTINGS = ((10**6, 1), (10**9, 1), (10**9, 8), (10**9, 64), (10**9, 1_000), (10**9, 10_000))


class Machine(NamedTuple):
    """What was measured on one device."""

    operations: float
    """A second, all of a large calibration's time counted."""
    rest: float
    """Seconds of a calibration with hardly any observations."""


def operations(calls: Sequence[Sequence[int]], n: int, dim: int) -> float:
    """Of all passes; a call is rows, particles and how often."""
    return sum(rows * size * times for rows, size, times in calls) * (2.0 * dim + 4) * n


def machine(passes: dict[str, Any], large_n: int, large_seconds: float, small_seconds: float) -> Machine:
    done = operations(passes["calls"], large_n, passes["K"])
    return Machine(done / (large_seconds - small_seconds), small_seconds)


class Cost(NamedTuple):
    """Seconds, and bytes a device."""

    passes: float
    sums: float
    rest: float
    host: float
    data: float

    @property
    def total(self) -> float:
        """On devices."""
        return self.passes + self.sums + self.rest


def cost(own: Machine, passes: dict[str, Any], n: int, devices: int) -> Cost:
    computing = operations(passes["calls"], 1, passes["K"]) * n / (devices * own.operations)
    hops = 2 * math.ceil(math.log2(devices)) if devices > 1 else 0
    sums = 0.0
    for rows, size, times in passes["calls"]:
        bytes_sent = 2 * 4 * rows * size * (devices - 1) / devices
        sums += times * (bytes_sent / LINK + hops * MESSAGE)
    host = passes["host seconds"] * n / passes["host N"]
    # Regressors, the target, the offset and the reference's loss; and an influence for each parameter.
    return Cost(computing, sums, own.rest, host, 4 * (2 * passes["K"] + 3) * n / devices)


def table(own: Machine, passes: dict[str, Any]) -> Table:
    rows = []
    for n, devices in _SETTINGS:
        found = cost(own, passes, n, devices)
        rows.append(
            (
                f"{n:,}",
                f"{devices:,}",
                _amount(found.passes, "s"),
                _amount(found.sums, "s"),
                _amount(found.rest, "s"),
                _amount(found.host, "s"),
                _amount(found.data / 1e9, "GB"),
                f"{found.passes / found.total:.0%}",
            )
        )
    names = (
        "observations",
        "devices",
        "passes",
        "sums",
        "rest",
        "a process's host",
        "data a device",
        "passes, of these",
    )
    return Table(names, rows)


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2g} {unit}"


def enough(own: Machine, passes: dict[str, Any], n: int) -> int:
    """The devices from which half of the devices' time goes into anything but passes."""
    low, high = 1, 10**8
    while high - low > 1:
        devices = (low + high) // 2
        found = cost(own, passes, n, devices)
        low, high = (devices, high) if found.passes > found.total / 2 else (low, devices)
    return high


def section(place: str, host: str, own: Machine, passes: dict[str, Any], large: int) -> list[str]:
    """For a page: what was measured and assumed, the table, and what follows."""
    calls = passes["calls"]
    times, most = sum(call[2] for call in calls), _SETTINGS[-1][0]
    main = [call for call in calls if call[0] * call[1] > 10_000]
    often = " and ".join(f"{times} for {size:,} particles on {rows:,} rows" for rows, size, times in main)
    shape = f"B {passes['B']:,}, M {passes['M']:,}, K {passes['K']}"
    words = f"""## On paper: a billion observations, a thousand devices

Measured on {place}: {own.operations / 1e12:.1f} TFLOP/s in a calibration of {large:,} observations, all of its time
counted; {own.rest:.2f} s for what does not grow with them, as a small calibration takes. With {shape} it goes over
the observations {times} times, counted at N {passes["N"]:,}: {often}, the rest for few. Passes were counted, and what
the host does was measured, on {host}.

Assumed: {LINK / 1e9:.0f} GB/s between devices, as data sheets say, and {MESSAGE * 1e6:.0f} microseconds a message.
Each pass ends with a sum over devices of one number a particle, whatever N is. Not counted are the few other passes
(influences, totals), and those of the first draws over a sample of the observations, whose size does not grow."""
    alone, crowd = cost(own, passes, most, 1), float(f"{enough(own, passes, most):.0e}")
    given = 8 * (passes["K"] + 1) * most / 1e9
    bound = f"""On the devices, passes bound it as long as each has observations enough: with {most:,} of them, half of
the time goes into anything else from about {crowd:,.0f} devices on, into what each does for itself
and the latency of {times} sums one after another. Their memory does not bound it: counts are drawn where they are
needed, and the data are divided.

What stops scaling first is the host: every process checks, fits and fingerprints all of the data, {alone.host:,.0f} s
for {most:,} observations, and needs the memory for it, {given:,.0f} GB as they are given and more
for copies: eight processes on a machine need eight times that. As it is, more than about
{alone.passes / alone.host:.0f} devices do not pay at that size; that work would have to be divided next."""
    return [words, table(own, passes).markdown(), bound]
