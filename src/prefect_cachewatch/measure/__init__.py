"""How big is it: one scan (`snapshot`), growth accounting (`ledger`), a scan process with a deadline (`scanner`)."""

__all__: list[str] = []
