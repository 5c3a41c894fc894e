"""The risk of many particles as handwritten loops, compiled by numba and run on all cores.

Each replicate is processed by one thread and its particles in tiles that fit the first-level cache. Observations with
count zero are skipped, which the fused passes of the engine cannot do. The loop over parameters is unrolled by hand.
"""

import numba
import numpy as np

TILE = 512
_jit = numba.njit(parallel=True, fastmath=True)


@_jit
def quantile_2(theta, x, y, counts, tau, out):
    """Check loss with two parameters; shapes theta (K, B, M), counts (B, N), out (B, M)."""
    n_replicates, n_particles = out.shape
    for b in numba.prange(n_replicates):
        for start in range(0, n_particles, TILE):
            end = min(start + TILE, n_particles)
            t0, t1, total = theta[0, b, start:end], theta[1, b, start:end], np.zeros(end - start, np.float32)
            for i in range(len(y)):
                c = counts[b, i]
                if c == 0:
                    continue
                x0, x1, yi = x[i, 0], x[i, 1], y[i]
                for m in range(end - start):
                    r = yi - (x0 * t0[m] + x1 * t1[m])
                    total[m] += c * max(tau * r, (tau - np.float32(1)) * r)
            out[b, start:end] = total


@_jit
def hinge_8(theta, x, y, counts, out):
    """Hinge loss with eight parameters; shapes as in `quantile_2`."""
    n_replicates, n_particles = out.shape
    for b in numba.prange(n_replicates):
        for start in range(0, n_particles, TILE):
            end = min(start + TILE, n_particles)
            t0, t1, t2, t3 = (
                theta[0, b, start:end],
                theta[1, b, start:end],
                theta[2, b, start:end],
                theta[3, b, start:end],
            )
            t4, t5, t6, t7 = (
                theta[4, b, start:end],
                theta[5, b, start:end],
                theta[6, b, start:end],
                theta[7, b, start:end],
            )
            total = np.zeros(end - start, np.float32)
            for i in range(len(y)):
                c = counts[b, i]
                if c == 0:
                    continue
                z = x[i] * y[i]
                z0, z1, z2, z3, z4, z5, z6, z7 = z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7]
                c2 = c * np.float32(2)
                for m in range(end - start):
                    margin = z0 * t0[m] + z1 * t1[m] + z2 * t2[m] + z3 * t3[m]
                    margin += z4 * t4[m] + z5 * t5[m] + z6 * t6[m] + z7 * t7[m]
                    total[m] += c2 * max(np.float32(0), np.float32(1) - margin)
            out[b, start:end] = total


@_jit
def chains(values, factor, term, times):
    """Apply 16 dependent multiply-adds to each value, `times` times; a tile of values stays in the L1 cache."""
    for tile in numba.prange(len(values) // TILE):
        v = values[tile * TILE : (tile + 1) * TILE]
        for _ in range(times):
            for m in range(TILE):
                a = v[m]
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                a = a * factor + term
                v[m] = a
