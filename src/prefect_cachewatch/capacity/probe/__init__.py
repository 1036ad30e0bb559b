"""Measures a storage: `target` says whether it may, `direct` measures, `measure` repeats, `checks` doubts, `profile` keeps.

`fio` reads what a person's own runs of fio measured.
"""
