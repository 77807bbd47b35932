"""Install a CPU build of torch for the demo and the tests, or keep the torch that is there."""

import importlib.util
import subprocess
import sys

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def pip(*arguments: str) -> bool:
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False).returncode == 0


if importlib.util.find_spec("torch") is None:
    # PyTorch's own index has the small CPU builds. Where it cannot be reached, the package index's build does as well.
    reached = sys.platform == "linux" and pip("torch==2.13.0+cpu", "--index-url", CPU_INDEX, "--retries", "0")
    if not reached and not pip("torch==2.13.0"):
        sys.exit("torch could not be installed: see pip's message above")
