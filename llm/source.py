"""Where a model comes from: a folder, or an id on the hub, which becomes a folder. Knows no torch.

`resolve_source("org/name")` downloads what a model needs (or finds it in the hub's cache) and gives the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import errors as hub
from huggingface_hub import snapshot_download

from mmswap.errors import ModelError, told
from mmswap.llm.config_source import HUB_ID

_NEEDED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken")


def resolve_source(source: str | Path, *, trust_remote_code: bool = False) -> Path:
    """The folder of a model: `source` itself, or the hub's snapshot of the id that it is.

    Raises:
        ModelError: no such folder, no such id, no access, or no connection and nothing in the cache.
    """
    path, name = Path(source).expanduser(), str(source)
    if name.strip() and path.is_dir():
        return path
    if name.strip() and path.exists():
        raise ModelError(f"{path} is a file: give the folder of a model, or an id on the hub.")
    if isinstance(source, Path) or not HUB_ID.fullmatch(name) or name.startswith((".", "/", "~")):
        raise ModelError(f"There is no folder {name}: give the folder of a model, or an id such as org/name.")
    patterns = [*_NEEDED, "*.py"] if trust_remote_code else list(_NEEDED)
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except hub.GatedRepoError:
        raise ModelError(
            f"{name} asks for a licence to be accepted on the hub, and for a token (hf auth login)."
        ) from None
    except (hub.RepositoryNotFoundError, hub.HFValidationError):
        raise ModelError(
            f"{name} is neither a folder here nor a model on the hub (private ones need hf auth login)."
        ) from None
    except (hub.LocalEntryNotFoundError, hub.HfHubHTTPError, OSError, RuntimeError) as error:
        offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
        why = "HF_HUB_OFFLINE is set" if offline else f"the hub could not be reached ({told(error.__cause__ or error)})"
        raise ModelError(f"{name} is no folder here, it is not in the hub's cache, and {why}.") from None
