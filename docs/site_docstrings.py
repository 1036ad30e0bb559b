"""Our docstrings say `Example:`; griffe reads what is below it as code only under `Examples:`."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Let each `Example:` be read as the section of examples that it is."""

    def on_instance(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Change a docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
