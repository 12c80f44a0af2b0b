"""What a family's processor asks of its image processor whenever nobody asks otherwise: `images_defaults("internvl")`.

transformers keeps these in the processor's class and not in the image processor, where other defaults stand: InternVL's
image processor alone would make one tile of every picture, and its processor makes up to thirteen.
"""

from __future__ import annotations

import importlib
from typing import Any


def images_defaults(model_type: str) -> dict[str, Any]:
    """Settings of the image processor by the class of the family's processor; empty where there are none.

    Older versions of transformers keep them in `<Processor>Kwargs._defaults`, newer ones in the class itself.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES as PROCESSORS

    name = PROCESSORS.get(model_type)
    if not isinstance(name, str):
        return {}
    for home in (model_type, *(home for home, other in PROCESSORS.items() if other == name)):
        try:
            module = importlib.import_module(f"transformers.models.{home}.processing_{home}")
        except ImportError:
            continue
        if hasattr(module, name):
            kept = getattr(getattr(module, name), "images_kwargs", None)
            if isinstance(kept, dict):
                return dict(kept)
            older = vars(module).get(f"{name}Kwargs")
            return dict(getattr(older, "_defaults", {}).get("images_kwargs", {}))
    return {}
