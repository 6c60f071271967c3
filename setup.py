"""What pyproject.toml cannot say: packages are found, and two folders beside the package go into its wheel."""

from setuptools import find_packages, setup

BESIDE = {f"estimator_utils.{folder}": folder for folder in ("data", "notebooks")}

setup(packages=[*find_packages(include=["estimator_utils*"]), *BESIDE], package_dir=BESIDE)
