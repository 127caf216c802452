"""What the report says beside its numbers."""

INTRODUCTION = (
    "Times are medians of repetitions, with the quartiles in brackets where they are 5 % or "
    "more apart: CUDA events around the Python calls on a GPU, one after another where the last "
    "table says queued, else with a wait after each, so that small graphs show the launches and "
    "the host, and the clock on a CPU. Before a call is timed, its result and its gradients are "
    "compared with float64 on a sample of rows; what is less exact than 1e-5 of the largest "
    "element (float32; bfloat16 8e-3, gradients four times as much) says [error "
    '…]. Inputs are rotated where they would fit a GPU\'s L2 cache. A graph is "real" where '
    'the data set was there, else a "stand-in" made with its statistics; × is the number of '
    "graphs of a batch. Unless said otherwise, attention has one head of 128 features."
)

SECTION_TEXTS = {
    "roofs": (
        "What bounds a kernel that reads a row of features for every edge. Copies count bytes "
        "read and written, gathers of random rows what is read, by the fastest of "
        "torch's index_select and embedding_bag and this package's spmm."
    ),
    "batch": (
        "Attention on batches, beside PyG's message passing, a pipeline of three sparse "
        "operators, and masked dense attention. Padding and packing are in the time of dense "
        "SDPA, masks are made before. pyg_dfgnn is the method that a layer chooses. PyG compiled "
        "and FlexAttention, which take many seconds to compile, have a time in some places only."
    ),
    "full": ("Attention on graphs of one piece; what takes long to compile in some places only."),
    "super": (
        "Graphs with nodes of thousands of edges. What is not there ran out of memory or has "
        "no such computation."
    ),
    "methods": (
        "The methods of the operators: shared memory maximization fusion (smmf), parallelism "
        "maximization fusion (pmf), masked dense attention within tiles (tile), and sparse "
        "attention within tiles (resident), where these fit in shared memory; pyg_dfgnn "
        'is the choice of `method="auto"`. On a CPU all are the same kernel. Of random graphs, '
        "so many of all pairs of nodes are edges."
    ),
    "ablation": (
        'What fusion is worth: "unfused" is this package\'s own sddmm, softmax and spmm. What '
        "locality is worth: the same graph with its nodes numbered at random, which also ends "
        "a batch's block structure. What the skew of degrees costs: graphs of the same size "
        "whose rows are equally long, or not."
    ),
    "techniques": (
        "What each technique of a fused kernel is worth. These kernels are for this table alone "
        "(pyg_dfgnn/bench/techniques.cu): a block takes eight rows and scores their edges (SDDMM), "
        "then a warp sums the values of each row (SpMM). One by one are switched off: the even "
        'division of the edges of a block over its warps in the SDDMM ("not balanced": a warp '
        "scores one row, whatever its length); exponentials that are taken once and kept "
        '("again": every lane takes that of every edge as it sums its features); 16-byte loads; '
        "pieces of at most 512 edges of long rows, listed once for a graph outside of the time and "
        'merged in a fixed order ("not split": a block takes a row, however long); online softmax '
        '("in passes": over all scores for their maximum, their sum and the weights, in global '
        "memory where a block has more than 4096). pyg_dfgnn and smmf are the real kernels, which "
        "have techniques of their own."
    ),
    "reordering": (
        "Attention with nodes in the order that the data set gives them, in random order, and in "
        "the orders of ReorderNodes, which starts from the random one; what ReorderNodes takes on "
        "the CPU, once. Stand-ins have the skewed degrees of the data sets; their communities are "
        "planted, of adjacent nodes and equal sizes, with 70 % of the edges, so that the order "
        "as given is better than that of real data may be, and what an order finds "
        "there it may not find in real data. Communities are searched for in graphs of less than 5 "
        "million edges alone, since in others that takes minutes."
    ),
    "stars": (
        "Trees of as many nodes and edges each. In a path every node has one edge; in a star one "
        "node has all, as destination (in) or as source (out); in a star of stars the root shares "
        "them evenly with its neighbours. Nodes are numbered at random."
    ),
    "launches": (
        "Graphs so small that launching kernels takes longer than they run: wall time a call in a "
        "loop of 1000 from Python (of others than pyg_dfgnn 100, on a CPU a twentieth), on a GPU "
        "with the backward pass in the calling thread too, as torch.autograd has it without "
        "multithreading, and the time of a replay of a CUDA graph that the call was captured in. "
        "Inputs are the same each time, and in the cache."
    ),
    "features": ("From 16 to 256 features of the head."),
    "batch-size": ("Batches from few graphs to many."),
    "heads": ("One head of 128 features, and eight of 16."),
    "edge-features": (
        "Whole layers, 8 heads of 16 channels, with 128 features a node and so many an edge; "
        "gradients of both and of all parameters. The features of self-loops, where the layer adds "
        "them, are means, as PyG has it."
    ),
    "end-to-end": (
        "A training step of a whole model: collation of the batch, copy, structure, forward, "
        "backward, optimizer. pyg_dfgnn collates graphs that went through PrecomputeGraph, with "
        "PyG's Batch or, by DeviceLoader, on the device, or converts each batch's edge_index. "
        "Compiled is torch.compile of each block, once for batches of any size. For the parts the "
        "device is waited for after each; "
        '"step" is the time without. Speedups are over PyG eager.'
    ),
    "preprocess": (
        "From edge_index to both compressed forms, by the order of the edges, or from what "
        'PrecomputeGraph stored. "All" is dfgnn::compress, and of PrecomputeGraph with masks.'
    ),
    "memory": (
        "Peak memory of a training step. The figure is of attention alone, the table of whole "
        "layers, on random edges."
    ),
    "accuracy": (
        "Our layers and PyG's, trained from the same weights with the same seeds. Curves are "
        "of the first seed, PyG's drawn thin over ours."
    ),
}
