"""Model files on this machine: where they lie, how a name finds one, how a missing one is fetched.

Owns the models directory; knows nothing of what is inside a model file.
"""

from octavo.store.library import StoredModel, list_models, pull_model, resolve_model
from octavo.store.models_dir import models_dir
from octavo.store.progress import Progress, SilentProgress, TerminalProgress, shown
from octavo.store.removal import remove_model

__all__ = [
    "Progress",
    "SilentProgress",
    "StoredModel",
    "TerminalProgress",
    "list_models",
    "models_dir",
    "pull_model",
    "remove_model",
    "resolve_model",
    "shown",
]
