"""Run a command for as long as standard input stays open: a child that cannot outlive its parent, even on kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when; Ctrl-C reaches the whole terminal

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        child.terminate()

    threading.Thread(target=end_with_parent, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
