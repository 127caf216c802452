"""Builds libdfgnn.so with CMake and puts it into the package; everything else is in pyproject.toml.

Environment: FORCE_CUDA=1 (fail rather than build without CUDA), FORCE_ONLY_CPU=1,
TORCH_CUDA_ARCH_LIST, CUDACXX, MAX_JOBS (parallel compilations), DEBUG=1 (-O0 -g),
DFGNN_WERROR=1 (warnings are errors).
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import setuptools

# pip does not look at build requirements when it builds without isolation.
if int(setuptools.__version__.split(".")[0]) < 77:
    sys.exit(f"setuptools {setuptools.__version__} is too old: pip install 'setuptools>=77'")

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def flag(name: str) -> bool:
    return os.environ.get(name, "0").upper() in ("1", "ON", "YES", "TRUE")


def torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        sys.exit(
            "pyg_dfgnn is compiled against the torch that it will run with, and there is none in "
            "this build environment. Install torch, setuptools, cmake and ninja, then run "
            "`pip install --no-build-isolation .`"
        )


class BuildLibrary(build_ext):
    """Runs CMake in build/torch<version>, which later builds of the same kind reuse."""

    def get_ext_filename(self, fullname: str) -> str:
        # Without the suffix of one Python: the library holds no Python symbols.
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        kind = "-debug" if flag("DEBUG") else ""
        build = ROOT / "build" / f"torch{torch_version()}{kind}"
        with_cuda = "OFF" if flag("FORCE_ONLY_CPU") else "ON" if flag("FORCE_CUDA") else "AUTO"
        configure = [
            *("cmake", "-S", ROOT, "-B", build, "-G", "Ninja"),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if flag('DEBUG') else 'Release'}",
            f"-DWITH_CUDA={with_cuda}",
            f"-DDFGNN_WERROR={'ON' if flag('DFGNN_WERROR') else 'OFF'}",
        ]
        missing = [tool for tool in ("cmake", "ninja") if shutil.which(tool) is None]
        if missing:
            sys.exit(
                f"pyg_dfgnn is built by cmake and ninja, and PATH has no {missing[0]}: "
                "pip install cmake ninja, in the environment that is active"
            )
        jobs = os.environ.get("MAX_JOBS")
        subprocess.check_call(configure)
        subprocess.check_call(["cmake", "--build", build, *(["--parallel", jobs] if jobs else [])])
        package = Path(self.get_ext_fullpath(ext.name)).parent.parent
        # Copies what is of another time, older or newer: it may be for another torch.
        subprocess.check_call(["cmake", "--install", build, "--prefix", package])

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name)).parent
            lib = ROOT / "pyg_dfgnn" / "lib"
            shutil.copytree(built, lib, copy_function=replace, dirs_exist_ok=True)


def replace(source: str, target: str) -> None:
    """Copies a file to the place of another, which processes that have it open keep."""
    copy = shutil.copy2(source, f"{target}.new")
    os.replace(copy, target)


class Wheel(bdist_wheel):
    """One wheel for all Pythons of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("pyg_dfgnn.lib.libdfgnn", sources=[])],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
