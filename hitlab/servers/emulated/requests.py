"""What the bodies of calls have in common in all emulated engines: prompts of token ids, and refusals."""

import msgspec

from hitlab.servers.emulated.config import EmulatedConfig
from hitlab.servers.emulated.dialect import Call, Response, json_response

TokenIds = tuple[int, ...]

_ONE_PROMPT = msgspec.json.Decoder(TokenIds)
_PROMPTS = msgspec.json.Decoder(tuple[TokenIds, ...])


class RefusedError(Exception):
    """A call that is answered with this error."""

    def __init__(self, response: Response) -> None:
        self.response = response


def read_prompts(body: msgspec.Raw) -> tuple[tuple[TokenIds, ...], bool]:
    """The prompts of a JSON list of token ids or of lists of them, and whether it was a list of lists.

    Raises msgspec.ValidationError for anything else.

    >>> read_prompts(msgspec.Raw(b"[5, 6]")), read_prompts(msgspec.Raw(b"[[5, 6]]"))
    ((((5, 6),), False), (((5, 6),), True))
    """
    try:
        return (_ONE_PROMPT.decode(body),), False
    except msgspec.ValidationError:
        return _PROMPTS.decode(body), True


def models_response(config: EmulatedConfig, call: Call, max_model_tokens: int) -> Response:
    """The answer to /v1/models: one model, which takes requests of so many tokens."""
    model = {
        "id": config.model_name,
        "object": "model",
        "created": int(call.at),
        "owned_by": "hitlab-emulated",
        "root": config.model_name,
        "parent": None,
        "max_model_len": max_model_tokens,
    }
    return json_response({"object": "list", "data": [model]})
