"""Packages of mmswap: the folders at the top of the repository install as ONE package (`llm/` is `mmswap.llm`).

Everything else (metadata, tools) is in pyproject.toml. `MMSWAP_HIP_ARCH=gfx1100 pip wheel .` makes a wheel of this
platform that holds the native kernels, compiled; without the variable the wheel is of every platform and holds sources.
"""

import os
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).parent.resolve()
HOUSES = ("vision", "llm", "hip_ext", "profiles")
ARCH = "MMSWAP_HIP_ARCH"
NATIVE = bool(os.environ.get(ARCH, "").strip())


class Native(Distribution):
    def has_ext_modules(self):
        return NATIVE


class Wheel(bdist_wheel):
    def get_tag(self):
        """The library is bound to the platform, and to no Python."""
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if NATIVE else (python, abi, platform)


class Build(build_py):
    def run(self):
        super().run()
        if NATIVE and not self.editable_mode:
            self._add_native(Path(self.build_lib) / "mmswap" / "hip_ext" / "built")

    def _add_native(self, into):
        """The library and what is said about it; a sentence and no wheel where it cannot be built."""
        sys.path.insert(0, str(ROOT))
        import mmswap

        mmswap.__path__.append(str(ROOT))
        from mmswap.errors import KernelError
        from mmswap.hip_ext.shipping import ship
        from mmswap.hip_ext.surroundings import Surroundings

        try:
            ship(Surroundings.real(), into)
        except KernelError as error:
            sys.exit(f"{ARCH} asks for native kernels, and they cannot be built: {error}.")


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
        "mmswap.server.page": ["*.html", "*.js", "*.css", "*.svg", "*.png", "*.ico"],
        "mmswap.hip_ext": ["csrc/*"],
    },
    cmdclass={"bdist_wheel": Wheel, "build_py": Build},
    distclass=Native,
)
