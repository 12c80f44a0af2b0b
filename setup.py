"""Packages of mmswap: the folders at the top of the repository install as ONE package (`llm/` is `mmswap.llm`).

Everything else (metadata, tools) is in pyproject.toml.
"""

from setuptools import find_packages, setup

HOUSES = ("vision", "llm", "hip_ext", "profiles")

packages = find_packages(include=["mmswap", "mmswap.*"])
for house in HOUSES:
    packages.append(f"mmswap.{house}")
    packages += [f"mmswap.{house}.{inner}" for inner in find_packages(where=house)]

setup(
    packages=packages,
    package_dir={f"mmswap.{house}": house for house in HOUSES},
    include_package_data=False,
    package_data={
        "mmswap": ["py.typed", "carried/*/*", "card/*.json"],
        "mmswap.profiles": ["*.json"],
        "mmswap.hip_ext": ["csrc/*"],
    },
)
