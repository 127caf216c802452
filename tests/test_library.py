"""What an import says when the operators' library is missing or was built for another torch."""

from pathlib import Path

import pytest
import torch

from pyg_dfgnn import _library


def test_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("DFGNN_LIBRARY", str(tmp_path / "libdfgnn.so"))
    with pytest.raises(ImportError, match=r"missing: no file .*libdfgnn\.so.*pip install"):
        _library.load()


def test_not_loadable(monkeypatch, tmp_path):
    path = tmp_path / "libdfgnn.so"
    path.write_text("not a shared library " * 100)
    monkeypatch.setenv("DFGNN_LIBRARY", str(path))
    with pytest.raises(ImportError, match=r"operators of pyg_dfgnn are there, of another library"):
        _library.load()
    monkeypatch.setattr(_library, "_is_registered", lambda: False)
    with pytest.raises(ImportError, match=r"does not load .*pip install.*invalid ELF header"):
        _library.load()


def test_another_library(monkeypatch):
    path = Path(torch.__file__).parent / "lib" / "libc10.so"
    monkeypatch.setenv("DFGNN_LIBRARY", str(path))
    monkeypatch.setattr(_library, "_is_registered", lambda: False)
    with pytest.raises(ImportError, match=r"libc10\.so is no library of pyg_dfgnn's operators"):
        _library.load()


def test_built_for_another_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "1.13.1")
    with pytest.raises(
        ImportError, match=r"built for torch \d+\.\d+.* torch 1\.13\.1 is installed"
    ):
        _library.load()
