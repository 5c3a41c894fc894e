"""The mathematics below models and samplers: targets, risks, counts, particles and their diagnostics."""
