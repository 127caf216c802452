"""How PyG and torch feed, wrap, save and change models, on our layers and on PyG's."""

import copy
import importlib.util
import io

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_geometric.nn
from fused_calls import FusedCalls
from layers import FEATURES, features, hub, transposed
from surroundings import LAYERS, assert_alike, results, twins
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

needs_sampling = pytest.mark.skipif(
    not (WITH_PYG_LIB or WITH_TORCH_SPARSE), reason="nothing that samples"
)


def gat(nn, **arguments):
    return nn.models.GAT(FEATURES, 8, 2, 5, heads=2, **arguments)


def random_graph(nodes=200, degree=5):
    torch.manual_seed(0)
    x, y = torch.randn(nodes, FEATURES), torch.randint(5, (nodes,))
    return Data(x=x, y=y, edge_index=torch.randint(nodes, (2, nodes * degree)))


def trained(model, batches, loss_of):
    """The losses of one pass of Adam over the batches."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@needs_sampling
def test_neighbor_loader():
    def loss(model, batch):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        return F.cross_entropy(out, batch.y[: batch.batch_size])

    losses = []
    for model in twins(gat):
        torch.manual_seed(3)
        loader = NeighborLoader(random_graph(), [4, 3], batch_size=32)
        losses.append(trained(model, loader, loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_trim_to_layer(sparse):
    """A batch as a loader samples it: each layer needs one hop less than the one before."""
    nodes, edges = [4, 10, 20], [12, 30]
    x = features(sum(nodes))[0]
    torch.manual_seed(0)
    hops = [  # from what is at most one hop further, to what was sampled in the hop before
        torch.stack([torch.randint(14, (12,)), torch.randint(4, (12,))]),
        torch.stack([torch.randint(34, (30,)), torch.randint(4, 14, (30,))]),
    ]
    edge_index = torch.cat(hops, dim=1)
    models = [model.eval() for model in twins(gat)]
    whole = models[0](x, edge_index)[: nodes[0]]
    if sparse:
        edge_index = transposed(edge_index, 34, 34)

    def call(model):
        return model(
            x, edge_index, num_sampled_nodes_per_hop=nodes, num_sampled_edges_per_hop=edges
        )[: nodes[0]]

    assert_alike(models, call, operators=2)
    torch.testing.assert_close(call(models[0]), whole)


@needs_sampling
def test_inference_layer_by_layer():
    outputs = []
    for model in twins(gat):
        torch.manual_seed(3)
        loader = NeighborLoader(random_graph(), [-1], batch_size=64)
        outputs.append(model.eval().inference(loader))
    torch.testing.assert_close(*outputs)


def test_batches():
    """Batch puts graphs side by side; each gives what it gives alone."""
    data = [random_graph(nodes, 3) for nodes in (5, 20, 1)]
    batch = Batch.from_data_list(data)
    model = twins(gat)[0].eval()
    alone = torch.cat([model(graph.x, graph.edge_index) for graph in data])
    torch.testing.assert_close(model(batch.x, batch.edge_index), alone)


@pytest.mark.parametrize("unused", [False, True])
def test_distributed_data_parallel(unused, tmp_path):
    """Gradients are those without the wrapper, and reach every parameter's bucket."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x, edge_index = hub()
        ours, theirs = twins(gat)
        wrapped = DistributedDataParallel(copy.deepcopy(ours), find_unused_parameters=unused)
        expected = results(theirs, lambda model: model(x, edge_index))
        with FusedCalls() as calls:
            actual = results(wrapped, lambda model: model(x, edge_index))
        assert len(calls.names) >= 2
        for name, value in expected.items():
            mine = actual[name if name in actual else f"module.{name}"]
            torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-4)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("weights_only", [False, True])
def test_checkpoints(layer, weights_only):
    """Whole modules and state_dicts, ours into PyG's and back."""
    ours, theirs = twins(LAYERS[layer])
    for source, target in ((ours, theirs), (theirs, ours)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.normal_()
        buffer = io.BytesIO()
        torch.save(source.state_dict() if weights_only else source, buffer)
        buffer.seek(0)
        saved = torch.load(buffer, weights_only=weights_only)
        if not weights_only:
            assert type(saved) is type(source)
            saved = saved.state_dict()
        assert not any(target.load_state_dict(saved))
    x, edge_index = hub()
    assert_alike([ours.eval(), theirs.eval()], lambda model: model(x, edge_index))


def test_copies():
    """deepcopy is independent; an average of weights is made of such copies."""
    x, edge_index = hub()
    model = twins(gat)[0]
    expected = model(x, edge_index)
    twin = copy.deepcopy(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not model(x, edge_index).any()
    torch.testing.assert_close(twin(x, edge_index), expected)
    torch.testing.assert_close(average(x, edge_index), expected)


def weight_of(model):
    """The first linear layer, whichever name it has."""
    return next(m for m in model.modules() if isinstance(m, torch_geometric.nn.Linear))


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "AGNNConv"])
def test_pruning(layer):
    """Weights under a mask, of a layer inside and of the layer itself, then made permanent."""
    x, edge_index = hub()
    models = [model.eval() for model in twins(LAYERS[layer])]
    for model in models:
        torch.manual_seed(4)
        prune.l1_unstructured(weight_of(model), "weight", amount=0.5)
        for name in [name for name, _ in model.named_parameters(recurse=False)]:
            prune.random_unstructured(model, name, amount=1)
    assert_alike(models, lambda model: model(x, edge_index))
    for model in models:
        prune.remove(weight_of(model), "weight")
        assert (weight_of(model).weight == 0).float().mean() == pytest.approx(0.5, abs=0.02)
    assert_alike(models, lambda model: model(x, edge_index))


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "AGNNConv"])
def test_parametrizations(layer):
    x, edge_index = hub()
    models = [model.eval() for model in twins(LAYERS[layer])]
    for model in models:
        parametrizations.weight_norm(weight_of(model))
    assert_alike(models, lambda model: model(x, edge_index))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(layer, reentrant):
    """The forward pass runs again in the backward pass."""
    x, edge_index = hub()
    x.requires_grad_()
    models = [model.eval() for model in twins(LAYERS[layer])]
    checkpoint = torch.utils.checkpoint.checkpoint
    assert_alike(models, lambda model: checkpoint(model, x, edge_index, use_reentrant=reentrant))


def test_mixed_precision_training(device):
    """Autocast and GradScaler, as a training loop has them."""
    x, edge_index = hub(device)
    y = torch.arange(40, device=device) % 5
    losses = []
    for model in twins(gat, device):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler(device)
        losses.append([])
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x, edge_index).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="lightning is missing")
def test_lightning():
    import lightning

    x, edge_index = hub()

    def build(nn):
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = gat(nn)

            def training_step(self, batch, _):
                return self.model(x, edge_index).square().mean()

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=0.01)

        return Module()

    weights = []
    for module in twins(build):
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False
        )
        trainer.fit(module, torch.utils.data.DataLoader(range(4)))
        weights.append(list(module.parameters()))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-4)
