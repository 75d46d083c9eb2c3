"""What the files of a served model say, where they lie on this machine too."""

from pathlib import Path
from typing import Annotated

import msgspec


class _Config(msgspec.Struct):
    vocab_size: Annotated[int, msgspec.Meta(ge=2)] | None = None


def vocabulary_tokens(model_path: str | None) -> int | None:
    """The vocabulary's size from the model's config.json, where the server's model lies on this machine too."""
    if not model_path:
        return None
    try:
        config = (Path(model_path) / "config.json").read_bytes()
        return msgspec.json.decode(config, type=_Config).vocab_size
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
