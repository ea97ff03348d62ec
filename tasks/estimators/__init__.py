"""Estimators of scikit-learn for people with a table."""

from importlib.util import find_spec

if find_spec("sklearn") is None:
    raise ImportError("the estimators need scikit-learn: install the extra `sklearn`")

from tasks.estimators.classifier import BayesianMLPClassifier
from tasks.estimators.regressor import BayesianMLPRegressor

__all__ = ["BayesianMLPClassifier", "BayesianMLPRegressor"]
