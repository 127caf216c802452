"""What the report says beside its numbers."""

INTRODUCTION = (
    "Times are medians of repetitions, with the quartiles in brackets where they are 5 % or "
    "more apart: CUDA events around the Python call on a GPU, so that small graphs show the "
    "launches, and the clock on a CPU. Before a call is timed, its result and its "
    "gradients are compared with float64 on a sample of rows; what is less exact than 1e-5 of "
    "the largest element (float32; bfloat16 8e-3, gradients four times as much) says [error "
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
        "SDPA, masks are made before. pyg_dfgnn is the method that a layer chooses."
    ),
    "full": ("Attention on graphs of one piece."),
    "super": (
        "Graphs with nodes of thousands of edges. What is not there ran out of memory or has "
        "no such computation."
    ),
    "methods": (
        "The methods of the operators: shared memory maximization fusion (smmf), parallelism "
        "maximization fusion (pmf) and masked dense attention within tiles (tile); pyg_dfgnn "
        'is the choice of `method="auto"`. On a CPU all are the same kernel.'
    ),
    "ablation": (
        'What fusion is worth: "unfused" is this package\'s own sddmm, softmax and spmm. What '
        "locality is worth: the same graph with its nodes numbered at random, which also ends "
        "a batch's block structure. What the skew of degrees costs: graphs of the same size "
        "whose rows are equally long, or not."
    ),
    "features": ("From 16 to 256 features of the head."),
    "batch-size": ("Batches from few graphs to many."),
    "heads": ("One head of 128 features, and eight of 16."),
    "end-to-end": (
        "A training step of a whole model: collation of the batch, copy, structure, forward, "
        "backward, optimizer. pyg_dfgnn collates graphs that went through PrecomputeGraph, or "
        "converts each batch's edge_index. For the parts the device is waited for after each; "
        '"step" is the time without. Speedups are over PyG eager.'
    ),
    "preprocess": (
        "From edge_index to both compressed forms, by the order of the edges, or from what "
        "PrecomputeGraph stored."
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
