"""Predict, measure and explain the prefix-cache hit rate of LLM serving engines."""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout the families (engines, workloads, policies, labs) stand beside this
# package; in a wheel they are inside it. Either way they import as hitlab.engines etc.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "engines" / "__init__.py").is_file():
    __path__.append(str(_checkout))
