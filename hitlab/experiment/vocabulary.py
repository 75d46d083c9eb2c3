"""Which token ids may be sent: an id outside the vocabulary kills a real server (measured on both engines)."""

from hitlab.errors import UsageError

DEFAULT_RANGE = (1000, 31_999)  # above the special tokens, inside every vocabulary in common use


def safe_range(asked: tuple[int, int] | None, size: int | None) -> tuple[int, int]:
    """The range to draw from: the one asked for if it is known to be safe, else the default.

    Raises UsageError for a range that reaches above the vocabulary, or may, and for a vocabulary below the default.

    >>> safe_range(None, None), safe_range(None, 5000), safe_range((100, 49_999), 50_257)
    ((1000, 31999), (1000, 4999), (100, 49999))
    """
    if size is not None and size < 2:
        raise UsageError(f"`vocab_tokens` is {size:,}", todo="give the vocab_size of the model's config.json")
    if asked is None and size is not None and size <= DEFAULT_RANGE[0]:
        raise UsageError(
            f"the vocabulary has {size:,} ids, and those from {DEFAULT_RANGE[0]:,} on are sent by default",
            todo="name others with `vocab_range`",
        )
    if asked is None:
        return DEFAULT_RANGE[0], min(DEFAULT_RANGE[1], (size or DEFAULT_RANGE[1] + 1) - 1)
    last = asked[1]
    if size is not None and last >= size:
        raise UsageError(
            f"`vocab_range` ends at {last:,}, the model's last id is {size - 1:,}",
            todo="an id outside the vocabulary would kill the server",
        )
    if size is None and last > DEFAULT_RANGE[1]:
        raise UsageError(
            f"`vocab_range` ends at {last:,} and the server does not say how large its vocabulary is",
            todo="an id outside it would kill the server: give `vocab_tokens`, vocab_size in the model's config.json",
        )
    return asked
