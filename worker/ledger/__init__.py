"""The run's jobs in Redis: Celery delivers messages, the ledger guarantees each job one outcome."""

from worker.ledger.ledger import PROTOCOL, Claim, Ledger, LedgerSettings
from worker.ledger.queue import connect, create_app, queue_name

__all__ = ["PROTOCOL", "Claim", "Ledger", "LedgerSettings", "connect", "create_app", "queue_name"]
