"""Scripts a model of fused layers, saves it, loads it and trains what was loaded.

The saved file needs no Python: C++ loads libdfgnn.so, then the model with torch::jit::load.
"""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Parser
from torch import Tensor, nn

import pyg_dfgnn.nn


class Model(nn.Module):
    def __init__(self, channels: int, hidden: int, classes: int):
        super().__init__()
        self.first = pyg_dfgnn.nn.GATConv(channels, hidden, heads=4)
        self.second = pyg_dfgnn.nn.TransformerConv(4 * hidden, classes, heads=2, concat=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        return self.second(x, edge_index)


def main():
    args = Parser(__doc__.split("\n\n")[0]).parse_args()
    torch.manual_seed(0)
    x = torch.randn(1000, 16, device=args.device)
    edge_index = torch.randint(1000, (2, 8000), device=args.device)
    y = torch.randint(3, (1000,), device=args.device)

    model = Model(16, 8, 3).to(args.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.jit.script(model).save(path)
        loaded = torch.jit.load(path, map_location=args.device)

    torch.testing.assert_close(loaded(x, edge_index), model(x, edge_index))
    optimizer = torch.optim.Adam(loaded.parameters(), lr=0.01)
    for step in range(5):
        loss = F.cross_entropy(loaded(x, edge_index), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
