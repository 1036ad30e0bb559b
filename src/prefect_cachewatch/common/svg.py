"""SVG documents for pages, artifacts and files. Pure; the callers draw the contents."""

from __future__ import annotations

import base64
from collections.abc import Iterable


def svg_document(width: int, height: int, parts: Iterable[str], more: str = "") -> str:
    """Join parts into an image that scales.

    Args:
        width: in the units of the parts, as is `height`.
        height: see `width`.
        parts: elements, escaped.
        more: further attributes, escaped.

    Example:
        >>> svg_document(2, 1, ["<g/>"])
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 2 1" width="2" height="1" role="img"><g/></svg>'
    """
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"{more and " " + more}>{"".join(parts)}</svg>'


def svg_data_uri(svg: str) -> str:
    """Encode an SVG as a `data:` URI for Markdown images and strict pages: both Prefect UIs strip raw SVG.

    Example:
        >>> svg_data_uri("<svg/>")
        'data:image/svg+xml;base64,PHN2Zy8+'
    """
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
