"""Measures a storage: `direct` moves bytes, `measure` says whether it may and repeats, `rates` doubts and makes the profile.

`fio` reads what a person's own runs of fio measured.
"""
