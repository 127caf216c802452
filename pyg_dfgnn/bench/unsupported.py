"""Why a backend does not run."""


class Unsupported(RuntimeError):
    """It has no such attention, needs more memory than it may take, or is not installed."""
