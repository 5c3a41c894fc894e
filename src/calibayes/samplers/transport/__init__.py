"""Transport: draws of the posterior on the data, moved to every replicate by affine maps and importance weights."""
