"""Which operators of the library run, wherever they are called."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# Operators that make graphs, or that layers take around PyG's steps, too.
OTHERS = ("coo_to_csr", "csr_to_csc", "linears", "add_features", "feature_sums")


class FusedCalls(TorchDispatchMode):
    """While it is entered, ``names`` gets each operator that works on edges."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func.namespace == "dfgnn" and func.overloadpacket.__name__ not in OTHERS:
            self.names.append(str(func).removeprefix("dfgnn."))
        return func(*args, **(kwargs or {}))
