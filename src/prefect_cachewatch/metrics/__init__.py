"""Prometheus metrics of a run: the list (`catalogue`), the values (`run`), their text (`page`).

They go to a `destination`: an HTTP endpoint or a file for node-exporter (`outlets`). A run holds an `exporter`.
"""
