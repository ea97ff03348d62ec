"""Darcy flow by RT0/P0 mixed finite elements: solvers for one and for many permeabilities."""
