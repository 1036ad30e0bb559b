"""A run as a stream of events: what may be said (`events`), who says it (`narrator`), who keeps it (`recorder`, `recording`).

An event is a fact at a moment. A face (the terminal, a recording, the fleet's table) reads events, and knows neither the
watch nor a file of the run. `replay` judges recorded events anew, with other windows.
"""
