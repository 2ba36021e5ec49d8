"""A server of language models with the interface that clients of OpenAI speak.

A request can only fail itself, nothing hangs, and what the metrics say is what happened. `app` is
the server, `chat` and its neighbours are endpoints, and the engine is that of `genesis.llm`.
"""
