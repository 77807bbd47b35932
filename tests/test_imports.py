"""What the producer and the contract may load: they run on machines without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["producer", "producer.cli", "worker.contract", "worker.ledger", "worker.process"])
def test_the_module_imports_without_torch(module):
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None; "  # None makes an import fail
        f"import {module}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
