"""Finds the cause of a stall, and writes the post-mortem.

`evidence` collects (from `proctree`, `procdetails`, `filesystem`, `stacks`) into `model` and `readings`; `diagnosis`
judges with `rules_storage` and `rules_process`, through `view` and `waits`; `bundle` writes the result, with `listing`,
`chart` and `html`; `bundlestore` lists and removes bundles. `examination` does all of it for one attempt; `report` has
the result.
"""

__all__: list[str] = []
