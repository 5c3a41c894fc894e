"""Projected cost of a calibration by transport on many devices, from measurements on one.

Every pass over the observations evaluates the risk of some particles on some replicates, with `2 K + 4` operations per
particle and observation, distributed evenly over the devices, followed by a sum over devices of one number per
particle. The remaining work, which every device does, takes as long as a calibration with a few hundred observations.
The work of the host before that is done by every process for all data.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.common import Table

BANDWIDTH = 50e9
"""Bytes per second between devices of two machines: one 400 Gb/s port per device, by its data sheet."""
LATENCY = 5e-6
"""Seconds of a message of any length: a typical value for such a network."""
_SETTINGS = ((10**6, 1), (10**9, 1), (10**9, 8), (10**9, 64), (10**9, 1_000), (10**9, 10_000))
"""Numbers of observations and devices."""
_MANY_PARTICLES = 10_000
"""Passes with more particles than this, over all replicates, are named in the text."""


class Device(NamedTuple):
    """Measured speed of one device."""

    operations: float
    """Operations per second in a large calibration, counting all of its time."""
    fixed: float
    """Seconds of a calibration with few observations."""


def operations(calls: Sequence[Sequence[int]], n: int, dim: int) -> float:
    """Return the operations of all passes; a call is (replicates, particles, number of passes)."""
    return sum(replicates * particles * times for replicates, particles, times in calls) * (2.0 * dim + 4) * n


def device(passes: dict[str, Any], large_n: int, large_seconds: float, small_seconds: float) -> Device:
    """Return the speed of a device from the times of a large and of a small calibration."""
    done = operations(passes["calls"], large_n, passes["K"])
    return Device(done / (large_seconds - small_seconds), small_seconds)


class Cost(NamedTuple):
    """Seconds by cause, and bytes of data per device."""

    passes: float
    sums: float
    fixed: float
    host: float
    data: float

    @property
    def total(self) -> float:
        """Seconds on the devices."""
        return self.passes + self.sums + self.fixed


def cost(speed: Device, passes: dict[str, Any], n: int, devices: int) -> Cost:
    """Return the projected cost for `n` observations on a number of devices."""
    computing = operations(passes["calls"], 1, passes["K"]) * n / (devices * speed.operations)
    hops = 2 * math.ceil(math.log2(devices)) if devices > 1 else 0
    sums = 0.0
    for replicates, particles, times in passes["calls"]:
        bytes_sent = 2 * 4 * replicates * particles * (devices - 1) / devices
        sums += times * (bytes_sent / BANDWIDTH + hops * LATENCY)
    host = passes["host seconds"] * n / passes["host N"]
    # Regressors, response, offset and loss at the reference point; and an influence for each parameter.
    return Cost(computing, sums, speed.fixed, host, 4 * (2 * passes["K"] + 3) * n / devices)


def table(speed: Device, passes: dict[str, Any]) -> Table:
    """Return the projected cost for several sizes."""
    rows = []
    for n, devices in _SETTINGS:
        projected = cost(speed, passes, n, devices)
        rows.append(
            (
                f"{n:,}",
                f"{devices:,}",
                _amount(projected.passes, "s"),
                _amount(projected.sums, "s"),
                _amount(projected.fixed, "s"),
                _amount(projected.host, "s"),
                _amount(projected.data / 1e9, "GB"),
                f"{projected.passes / projected.total:.0%}",
            )
        )
    columns = ("observations", "devices", "passes", "sums", "fixed", "host of each process", "data per device")
    return Table((*columns, "passes as share of device time"), rows)


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2g} {unit}"


def saturating_devices(speed: Device, passes: dict[str, Any], n: int) -> int:
    """Return the number of devices from which on less than half of the device time is spent on passes."""
    low, high = 1, 10**8
    while high - low > 1:
        devices = (low + high) // 2
        projected = cost(speed, passes, n, devices)
        low, high = (devices, high) if projected.passes > projected.total / 2 else (low, devices)
    return high


def section(place: str, host: str, speed: Device, passes: dict[str, Any], large: int) -> list[str]:
    """Return the section of the page: measurements and assumptions, the table, and conclusions."""
    calls = passes["calls"]
    n_passes, most = sum(call[2] for call in calls), _SETTINGS[-1][0]
    main = [call for call in calls if call[0] * call[1] > _MANY_PARTICLES]
    main_passes = " and ".join(
        f"{times} for {particles:,} particles on {replicates:,} replicates" for replicates, particles, times in main
    )
    sizes = f"B {passes['B']:,}, M {passes['M']:,}, K {passes['K']}"
    introduction = f"""## Projection: a billion observations, a thousand devices

Measured on {place}: {speed.operations / 1e12:.1f} TFLOP/s in a calibration of {large:,} observations, counting all of
its time, and {speed.fixed:.2f} s for the work that does not grow with the observations. With {sizes} a calibration
makes {n_passes} passes over the observations, counted at N {passes["N"]:,}: {main_passes}, the rest for few particles.
The passes were counted, and the work of the host was timed, on {host}.

Assumed: {BANDWIDTH / 1e9:.0f} GB/s between devices, from data sheets, and {LATENCY * 1e6:.0f} microseconds per message.
Each pass ends with a sum over devices of one number per particle, for any N. Not counted are the few other passes
(influences, totals), and those of the initial draws over a subsample whose size does not grow."""
    single, devices = cost(speed, passes, most, 1), float(f"{saturating_devices(speed, passes, most):.0e}")
    memory = 8 * (passes["K"] + 1) * most / 1e9
    conclusion = f"""On the devices, passes dominate as long as each device has enough observations: with {most:,}
observations, more than half of the time is spent on other work from about {devices:,.0f} devices on, that is, on the
work that each device repeats and on the latency of {n_passes} successive sums. Device memory is not a limit: counts are
drawn when they are needed, and the data are distributed.

The first limit is the host: every process checks, fits and fingerprints all data, which takes {single.host:,.0f} s for
{most:,} observations and {memory:,.0f} GB of memory for the data as passed by the user, plus copies; eight processes on
a machine need eight times as much. At that size more than about {single.passes / single.host:.0f} devices do not pay
off; this work would have to be distributed next."""
    return [introduction, table(speed, passes).markdown(), conclusion]
