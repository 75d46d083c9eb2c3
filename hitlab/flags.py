"""The one table from the names of fields to the flags that set them on the command line.

Messages of the core name a field in backquotes, as in "`prefix_tokens` is -1": a Python caller knows it by this name.
The command line shows them with its flags in place of the names, and so do the documents it writes.
"""

import re

FLAGS = {
    # what is sent
    "workload": "--workload",
    "requests": "--requests",
    "requests_per_group": "--per-group",
    "prefix_tokens": "--prefix-len",
    "suffix_tokens": "--suffix-len",
    "output_tokens": "--output-len",
    "groups": "--groups",
    "concurrency": "--concurrency",
    "vocab_range": "--vocab-range",
    "vocab_tokens": "--vocab-size",
    # how the cache is emptied and broken
    "cold_by": "--cold-by",
    "break_mode": "--break-mode",
    "break_at": "--break-at",
    "break_fixed": "--break-fixed",
    "flood_requests": "--flood-requests",
    "flood_tokens": "--flood-len",
    "seed": "--seed",
    # the server
    "engine": "--engine",
    "base_url": "--base-url",
    "metrics_urls": "--metrics-url",
    "emulate": "--emulate",
    "cpu": "--cpu",
    "block_tokens": "--block-size",
    "capacity_blocks": "--capacity-blocks",
    "ranks": "--dp",
    "api_key_env": "--api-key-env",
    "admin_key_env": "--admin-key-env",
    "timeout_s": "--timeout",
    "faults": "--fault",
    "engine_args": "--engine-arg",
    "log": "--log",
    "port": "--port",
    # recordings and logs
    "max_prompt_tokens": "--max-len",
    "max_output_tokens": "--max-output",
    "since": "--since",
    "until": "--until",
    # traces
    "trace_format": "--format",
    "skip_malformed": "--skip-malformed",
    "bytes_per_token": "--bytes-per-token",
    "plot": "--plot",
    # files
    "out": "--out",
    "folder": "--folder",
    "force": "--force",
}


def in_flags(text: str) -> str:
    """The text with the flag in place of every field that is named in backquotes and has one.

    >>> in_flags("`prefix_tokens` is -1; a `model` has no flag")
    '--prefix-len is -1; a `model` has no flag'
    """
    return re.sub(r"`(\w+)`", lambda found: FLAGS.get(found[1], found[0]), text)
