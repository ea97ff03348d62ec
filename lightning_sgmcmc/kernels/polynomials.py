"""Polynomials for a logarithm and a sine, of least error at Chebyshev's points.

    log(1 + f) = f - f^2 / 2 + f^3 P(f),    f in [sqrt(1/2) - 1, sqrt(2) - 1]
    sin(pi s) = s P(s^2),                   s in [-1/2, 1/2]

The coefficients of the two P, rounded to float32, leave errors of 2e-8 and 4e-8 of the value, below
the 6e-8 by which float32 rounds.
"""

#: Coefficients of the two P, the constant first: interpolants of degrees 7 and 4.
LOG = (
    0.33333331, -0.25000307, 0.20001045, -0.16641282,
    0.14214496, -0.12998183, 0.12622319, -0.07902744,
)  # fmt: skip
SINE = (3.14159274, -5.16771030, 2.55007744, -0.59829038, 0.07765591)
