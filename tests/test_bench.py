"""The measurements of pyg_dfgnn.bench run, and show what they are there to show."""

import sys

import pytest

from pyg_dfgnn.bench import memory


@pytest.mark.parametrize(
    ("layer", "edge_dim"),
    [
        *((layer, None) for layer in memory.LAYERS),
        *((layer, 4) for layer in ("GATConv", "TransformerConv", "GATv2Conv")),
    ],
)
def test_memory(layer, edge_dim, device, monkeypatch, capsys):
    """PyG's steps keep tensors [E, heads, channels]; ours keep none."""
    edges, heads, channels = 100000, 4, 32
    options = {"nodes": 100, "edges": edges, "features": 16, "heads": heads, "channels": channels}
    if edge_dim:
        options["edge-dim"] = edge_dim
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    libraries = ["--libraries", "dfgnn", "pyg"]
    monkeypatch.setattr(
        sys, "argv", ["memory", *arguments, "--device", device, "--layers", layer, *libraries]
    )
    assert memory.main() == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[layer, "dfgnn"], [layer, "pyg"]]
    ours, theirs = ([float(value) * memory.GIB for value in row[2:]] for row in rows)
    assert min(theirs[:2]) > edges * heads * channels * 4
    assert max(ours) < edges * heads * channels * 4
