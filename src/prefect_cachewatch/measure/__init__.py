"""Measures the cache: one scan (`snapshot`), growth accounting (`ledger`), a scan process (`scanner`)."""
