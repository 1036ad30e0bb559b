"""Options that commands share, and the models that they make."""

__all__ = ["container", "guard", "profile_choice", "publish", "ready"]
