"""Prometheus metrics of a run: the list (`catalogue`), the values (`run`), their text (`exposition`).

They go to a `destination`: an HTTP endpoint (`endpoint`) or a file for node-exporter (`textfile`). A run holds an
`exporter`. Only `exposition` needs prometheus_client, the extra `metrics`.
"""
