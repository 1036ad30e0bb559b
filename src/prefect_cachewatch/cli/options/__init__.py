"""Options that commands share, and the models that are made from them."""
