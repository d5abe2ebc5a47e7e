"""Images and video (Inference Engineering, 2.3): noise schedules, solvers, guidance, and the networks that denoise.

One parametrisation throughout: x = alpha x0 + sigma noise. Tables and coefficients are numbers of the host in float64;
what is done to arrays is done by operations, so one text of a solver or a network runs on NumPy and on kernels.
"""
