"""What runs beside a card: the contract, the ledger, the engine and the model families."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("nightcourt")
except PackageNotFoundError:  # a bare checkout on the path, not installed
    __version__ = "0.1.0"
