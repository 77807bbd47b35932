"""The models on every wire between producers, the ledger and workers. Imports no torch."""

from worker.contract.answers import Answer, answer_from_probabilities
from worker.contract.errors import DocumentError, ErrorKind, ModelError, UsageError
from worker.contract.identity import ModelIdentity
from worker.contract.job import Answered, Failed, Job, Outcome, Quarantined, Result, Source, State, Usage, job_key
from worker.contract.questions import Choice, Noul, NoulCriteria, Option, Question, QuestionSet, Score, Text

__all__ = [
    "Answer",
    "Answered",
    "Choice",
    "DocumentError",
    "ErrorKind",
    "Failed",
    "Job",
    "ModelError",
    "ModelIdentity",
    "Noul",
    "NoulCriteria",
    "Option",
    "Outcome",
    "Quarantined",
    "Question",
    "QuestionSet",
    "Result",
    "Score",
    "Source",
    "State",
    "Text",
    "Usage",
    "UsageError",
    "answer_from_probabilities",
    "job_key",
]
