"""The packages of the wheel; pyproject.toml says everything else.

A wheel holds ``configs`` as ``tasks/configs``, where ``tasks/home.py`` finds it. A folder of that
name beside the packages of others could be anybody's.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lightning_sgmcmc*", "tasks*", "pde*"]), "tasks.configs"],
    package_dir={"tasks.configs": "configs"},
    package_data={"": ["py.typed"], "tasks.configs": ["**/*.yaml"]},
    py_modules=["sgmcmc"],
)
