"""Why a generation stalled, and what was found when it ended.

`evidence` collects (from `proctree`, `procdetails`, `filesystem`, `stacks`) into `model` and `readings`; `diagnosis`
judges with `rules_storage` and `rules_process`, through `view` and `waits`; `bundle` writes it down, with `listing`,
`chart` and `html`; `bundlestore` finds bundles again. `examination` does all of it for one attempt, and `report` is what is kept of it.
"""

__all__: list[str] = []
