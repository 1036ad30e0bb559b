"""Options that commands share, and the models that are made from them."""

__all__ = ["container", "guard", "profile_choice", "publish", "ready"]
