"""The APIs under which agents speak to a policy: each is read into a ChatRequest and written back from events.

To add one: a file here that ends in an `Api` (its path; `read` a body into a ChatRequest, `write` events, `error`), and
its row in `APIS` of `llm_gateway/app.py`. Splice, masks, record and every other file stay as they are, for nothing
inside knows which API a request came by. `openai_chat.py` is the example.
"""
