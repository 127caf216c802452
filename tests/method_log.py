"""What ``attention`` prints of the method it takes, in a process that logs it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

# Calls what each line of its input says, and ends what that prints with an empty line.
PROGRAM = """
import sys, torch, pyg_dfgnn
for line in sys.stdin:
    max_degree, dtype, score, method, *sizes, backward, route = eval(line)
    num_src, head_dim, num_edges, num_rows, heads = sizes
    rowptr = torch.tensor([0] * num_rows + [num_edges])
    col = torch.zeros(num_edges, dtype=torch.int64)
    x = torch.randn(1, heads, head_dim, dtype=getattr(torch, dtype)).requires_grad_(backward)
    a = torch.randn(1, heads, dtype=x.dtype).requires_grad_(backward)
    x_dst, a_dst = x.expand(num_rows, -1, -1), a.expand(num_rows, -1)
    x_src, a_src = x.expand(num_src, -1, -1), a.expand(num_src, -1)
    x_one = x_src if num_rows == num_src else x_dst
    operands = {
        "dot": {"q": x_dst, "k": x_src, "v": x_src},
        "cosine": {"x_dst": x_one, "x_src": x_src, "beta": a[0, :1]},
        "additive": {"a_dst": a_dst, "a_src": a_src, "v": x_src},
        "additive_v2": {"x_dst": x_dst, "x_src": x_src, "att": x[0]},
    }
    if "tiles" in route:
        route["tiles"] = torch.tensor(route["tiles"], dtype=torch.int32)
    for name in {"a_edge", "bias"} & route.keys():
        route[name] = torch.zeros(num_edges, heads, dtype=x.dtype)
    route |= {"max_degree": max_degree, "method": method}
    out, _ = torch.ops.dfgnn.attention(rowptr, col, **operands[score], **route)
    if backward:
        print("backward", file=sys.stderr, flush=True)
        out.sum().backward()
    print(file=sys.stderr, flush=True)
"""


def worker(enabled: str) -> Iterator[Callable[..., str]]:
    environment = {**os.environ, "DFGNN_LOG": enabled}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None
    assert process.stderr is not None

    def log(
        max_degree: int,
        dtype: str,
        score: str,
        method: str,
        num_src: int = 1,
        head_dim: int = 4,
        num_edges: int = 3,
        num_rows: int = 1,
        heads: int = 1,
        backward: bool = False,
        **route: object,
    ) -> str:
        """What a call prints, or, of a backward pass, what that prints."""
        sizes = (num_src, head_dim, num_edges, num_rows, heads)
        print((max_degree, dtype, score, method, *sizes, backward, route), file=process.stdin)
        printed = ""
        while (line := process.stderr.readline()) != "\n":
            assert line, f"the process ended: {printed}"
            printed = "" if line == "backward\n" else printed + line
        return printed

    yield log
    process.communicate()
