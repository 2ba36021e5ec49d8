"""Language models as people have them: from their files, many requests at once.

An answer depends on its request alone; memory is planned before the first request; and the first
token comes soon. `LLM` is what one uses, `engine` what runs, and `scheduler` what decides.
"""

from genesis.llm.config import BadModel
from genesis.llm.engine import Event, TokenLogprobs
from genesis.llm.llm import LLM, Answer, Completion, RequestFailed
from genesis.llm.sampling import SamplingParams
from genesis.llm.request import Refused
from genesis.llm.structured import BadGrammar

__all__ = [
    "LLM", "Answer", "BadGrammar", "BadModel", "Completion", "Event", "Refused", "RequestFailed",
    "SamplingParams", "TokenLogprobs",
]  # fmt: skip
