"""The gateway: one fleet's OpenAI endpoint, in front of its engine pods.

Reading order: `relay/relay.py` (which pods a request is sent to, when again, how it ends),
`relay/attempt.py` (one call of one engine), `relay/answer.py` (what the client is sent).
Around them: `server` takes requests in, `routing` chooses pods, `pods` knows them, `accounting`
counts what became of requests, `wire` has the protocols.
"""
