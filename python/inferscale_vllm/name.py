"""The model's two names: what requests call it, and what people see."""

from __future__ import annotations

from pathlib import Path


def served_name(served: str | list[str] | None, model: str) -> str:
    """What requests call the model."""
    if isinstance(served, list):
        served = served[0] if served else None
    return served or model


def shown_name(served: str, model: str) -> str:
    """What people see: --served-model-name or the model's name; of a path on this machine only its last part."""
    if served != model or not (Path(model).is_absolute() or Path(model).exists()):
        return served
    return Path(model).expanduser().resolve().name or "model"
