"""Microcanonical Langevin dynamics on minibatches."""

from __future__ import annotations

from lightning_sgmcmc.samplers.microcanonical import Microcanonical


class SMILE(Microcanonical):
    """Stochastic-gradient microcanonical Langevin dynamics.

    The step is that of :class:`~lightning_sgmcmc.samplers.microcanonical.Microcanonical`, with the
    gradient of a minibatch, which both halves of B around it share. A velocity of constant length
    gives back at once what the noise heats it by. Let n_i be the variance of the noise of
    sqrt(lr / (N T)) C^(1/2) grad U in direction i, n its mean over directions, and mu = exp(-eps /
    L). On a Gaussian of many weights the variance in direction i is then, at small steps,

        T_i = 1 + (n_i - n) / (1 - mu^2 + n)

    times that of the target. Noise of a covariance proportional to C^-1, however large beside what
    the chain injects, does no more than forget the velocity sooner. Other noise leaves the mean
    temperature right, and directions warm that have more of it than others, stiff ones as a rule.
    So choose C as the inverse of the scores' covariance: ``DiagonalFisher(centred=True)`` of its
    diagonal, as the source does by a moving variance of gradients, or ``BlockFisher(centred=True)``
    and ``FullFisher(centred=True)`` of more of it. ``lr="auto"`` bounds what remains, and the cold
    of directions that have no noise.

    The source adapts the step to the energy's error on a minibatch, which does not see what the
    minibatch's noise does. Here the step is that of ``lr``.

    Target: exp(-U/T) for constant C, up to O(lr) and the noise that is not isotropic in C.

    Source: Sommer, Diao, Robnik, Seljak and Rugamer 2026 (arXiv 2602.06500), whose step is
    McLachlan's at two gradients of the same minibatch, without O.

    The arguments are those of :class:`~lightning_sgmcmc.samplers.microcanonical.Microcanonical`.
    """

    batches = "independent"
    absorbs_gradient_noise = True
    has_thermostat = True
