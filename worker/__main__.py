"""`python -m worker`: one worker process, as a run or a fleet starts it."""

from worker.cli import main

main()
