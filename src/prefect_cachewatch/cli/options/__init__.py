"""Options that commands share, and the models that they make."""

__all__ = ["container", "guard", "metrics", "profile_choice", "publish", "ready"]
