"""Templates for running in production, as package data: deployments, work pools, images, automations.

No code: `cachewatch automations` and `cachewatch templates` read them from the installed package.
"""

__all__: list[str] = []
