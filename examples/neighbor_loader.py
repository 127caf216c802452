"""Trains on sampled neighbourhoods of a graph too large for one step.

NeighborLoader needs pyg_lib or torch_sparse to sample.
"""

import torch
import torch.nn.functional as F
import torch_geometric.typing
from common import Parser, fail
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import pyg_dfgnn.nn
from pyg_dfgnn.bench.options import positive


class Model(nn.Module):
    def __init__(self, channels: int, hidden: int, classes: int):
        super().__init__()
        self.convs = nn.ModuleList(
            [
                pyg_dfgnn.nn.TransformerConv(channels, hidden // 4, heads=4),
                pyg_dfgnn.nn.TransformerConv(hidden, classes, heads=4, concat=False),
            ]
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.convs[0](x, edge_index))
        return self.convs[1](x, edge_index)


def friendly_graph(nodes: int, degree: int, classes: int) -> Data:
    """Noisy features, and neighbours of one's own class four times out of five."""
    y = torch.randint(classes, (nodes,)).sort().values
    dst = torch.arange(nodes).repeat_interleave(degree)
    near = (dst + torch.randint(-nodes // 50, nodes // 50, dst.shape)).clamp(0, nodes - 1)
    src = torch.where(torch.rand(dst.shape) < 0.8, near, torch.randint(nodes, dst.shape))
    x = F.one_hot(y, classes) + 2 * torch.randn(nodes, classes)
    return Data(x=x, y=y, edge_index=torch.stack([src, dst]))


def main():
    parser = Parser(__doc__.split("\n\n")[0])
    parser.add_argument("--nodes", type=positive, default=20000)
    args = parser.parse_args()
    if not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE):
        fail("NeighborLoader needs pyg_lib or torch_sparse, and neither is installed")
    torch.manual_seed(0)
    data = friendly_graph(args.nodes, degree=20, classes=8)
    loader = NeighborLoader(data, num_neighbors=[10, 10], batch_size=512, shuffle=True)
    model = Model(8, 32, 8).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        right = 0
        for batch in loader:
            batch = batch.to(args.device)
            # The first batch_size nodes are those sampled for, the others their neighbourhoods
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            y = batch.y[: batch.batch_size]
            loss = F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((out.argmax(1) == y).sum())
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right / args.nodes:.4f}")


if __name__ == "__main__":
    main()
