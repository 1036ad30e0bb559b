"""Prometheus metrics of a run: the list (`catalogue`), the values and their collector (`run`).

They go to a destination (`settings`): an HTTP endpoint or a file for node-exporter (`outlets`).
"""
