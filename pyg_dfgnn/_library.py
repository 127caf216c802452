"""Loads ``libdfgnn.so``, which registers the operators ``torch.ops.dfgnn.*``."""

import os
from pathlib import Path

import torch

_BUILD_HINT = (
    "Build it for the installed torch: `pip install --no-build-isolation .` in a checkout "
    "of pyg_dfgnn."
)


has_cuda = False  # whether the loaded library has CUDA operators


def library_path() -> Path:
    """Where the library is: ``DFGNN_LIBRARY`` if that is set, else beside this file."""
    override = os.environ.get("DFGNN_LIBRARY")
    return Path(override) if override else Path(__file__).parent / "lib" / "libdfgnn.so"


def cmake_prefix_path() -> str:
    """The folder for ``CMAKE_PREFIX_PATH`` that lets a C++ project ``find_package(dfgnn)``."""
    folder = library_path().resolve().parent
    return str(folder.parent if folder.name == "lib" else folder)  # installed, or a build folder


def load() -> None:
    """Registers the operators; ImportError says what is wrong with the library, and what to do."""
    path = library_path()
    if not path.is_file():
        raise ImportError(f"The operators of pyg_dfgnn are missing: no file {path}. {_BUILD_HINT}")
    if _is_registered() and not _is_loaded(path):  # which would end the process
        raise ImportError(
            f"{path} cannot be loaded: the operators of pyg_dfgnn are there, of another library. "
            "Set DFGNN_LIBRARY to that one."
        )
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(
            f"{path} does not load into torch {torch.__version__}; it was probably built for "
            f"another torch. {_BUILD_HINT} The loader says: {error.__cause__ or error}"
        ) from error
    if not _is_registered():
        raise ImportError(f"{path} is no library of pyg_dfgnn's operators. {_BUILD_HINT}")
    built_for = torch.ops.dfgnn.torch_version()
    if _minor(built_for) != _minor(torch.__version__):
        raise ImportError(
            f"{path} was built for torch {built_for}, and torch {torch.__version__} is installed; "
            f"torch's C++ interface changes between minor versions. {_BUILD_HINT}"
        )
    global has_cuda
    has_cuda = torch.ops.dfgnn.cuda_version() >= 0


def _is_loaded(path: Path) -> bool:
    """Whether this very file is."""
    maps = Path("/proc/self/maps")
    mapped = maps.read_text() if maps.is_file() else ""
    loaded = {Path(name).resolve() for name in torch.ops.loaded_libraries}
    return path.resolve() in loaded or str(path.resolve()) in mapped


def _is_registered() -> bool:
    return hasattr(torch.ops.dfgnn, "torch_version")


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
