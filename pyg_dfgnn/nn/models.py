"""Models of ``torch_geometric.nn.models`` on our layers: same arguments, weights and results."""

from typing import Any

from torch_geometric.nn import models
from torch_geometric.nn.conv import MessagePassing

from ..fuse import fuse


class GAT(models.GAT):
    """``torch_geometric.nn.models.GAT`` on our ``GATConv``, or ``GATv2Conv`` with ``v2=True``.

    Args:
        method: That of the fused operators, ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.

    All other arguments are those of ``torch_geometric.nn.models.GAT``.
    """

    def init_conv(
        self, in_channels: int | tuple[int, int], out_channels: int, **kwargs: Any
    ) -> MessagePassing:
        method = kwargs.pop("method", "auto")
        conv = super().init_conv(in_channels, out_channels, **kwargs)
        fuse(conv, method)
        return conv
