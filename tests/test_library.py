"""What an import says when the operators' library is missing or was built for another torch."""

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
    with pytest.raises(ImportError, match=r"does not load .*pip install.*invalid ELF header"):
        _library.load()


def test_built_for_another_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "1.13.1")
    with pytest.raises(
        ImportError, match=r"built for torch \d+\.\d+.* torch 1\.13\.1 is installed"
    ):
        _library.load()
