"""Trains fused layers under torch.compile, as one graph, on batches of changing sizes."""

import time

import torch
import torch.nn.functional as F
from common import Parser
from torch import Tensor, nn
from torch_geometric.loader import DataLoader

import pyg_dfgnn.nn
from pyg_dfgnn.bench.options import positive
from pyg_dfgnn.datasets import cluster_graphs


class Model(nn.Module):
    def __init__(self, channels: int, hidden: int, classes: int):
        super().__init__()
        self.encoder = nn.Linear(channels, hidden)
        self.convs = nn.ModuleList(
            pyg_dfgnn.nn.GATConv(hidden, hidden // 4, heads=4, residual=True) for _ in range(2)
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = F.elu(conv(x, edge_index))
        return self.head(x)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--graphs", type=positive, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(cluster_graphs(args.graphs, 0, 0).train, batch_size=16, shuffle=True)
    model = Model(7, 32, 6).to(args.device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)

    batch = next(iter(loader)).to(args.device)
    eager = model(batch.x, batch.edge_index)
    torch.testing.assert_close(compiled(batch.x, batch.edge_index), eager, rtol=1e-4, atol=1e-4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        start = time.perf_counter()
        for batch in loader:
            batch = batch.to(args.device)
            loss = F.cross_entropy(compiled(batch.x, batch.edge_index), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
