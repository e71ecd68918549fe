"""Models from the Hugging Face hub, through huggingface-hub's own cache.

Only what a model needs is fetched: safetensors, JSON files and the tokenizer. A model that is cached already
is used without the network.
"""

from __future__ import annotations

from pathlib import Path

PATTERNS = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "tiktoken.model",
    "merges.txt",
    "vocab.txt",
)


def download(repo_id: str, revision: str | None = None) -> Path:
    """Return the folder of the model `repo_id`: the cached snapshot when there is one, else a new download.

    Raises: ValueError when the hub cannot be reached and nothing is cached, or the repository cannot be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = list(PATTERNS)
    try:
        cached = Path(snapshot_download(repo_id, revision=revision, allow_patterns=patterns, local_files_only=True))
        if is_complete(cached):
            return cached
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise ValueError(f"{repo_id!r} is no Hugging Face repository id: {error}") from None
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=patterns))
    except HfHubHTTPError as error:
        raise ValueError(f"cannot download {repo_id!r} from the Hugging Face hub: {_line(error)}") from None
    except (LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"{repo_id!r} is not cached and the Hugging Face hub cannot be reached ({_line(error)}); "
            "connect, or give the path of a local model"
        ) from None


def is_complete(folder: Path) -> bool:
    """Say whether a snapshot has a configuration and every weight file that its index names."""
    from mansard.loading.safetensors import safetensors_paths
    from mansard.loading.stored import ModelFileError

    try:
        return (folder / "config.json").is_file() and all(p.is_file() for p in safetensors_paths(folder))
    except ModelFileError:
        return False


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
