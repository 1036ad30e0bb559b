"""Prometheus metrics of a run: what there is (`catalogue`), its values (`run`), their text (`exposition`).

Where they go (`destination`): an HTTP endpoint (`endpoint`) or a file for node-exporter (`textfile`); `exporter` is what
a run holds. Only `exposition` needs prometheus_client, the extra `metrics`.
"""

__all__ = ["catalogue", "destination", "endpoint", "exporter", "exposition", "run", "textfile"]
