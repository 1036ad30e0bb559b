"""Names of users, from this machine's own list: asking a directory service may hang."""

from __future__ import annotations

_MOST_BYTES = 1 << 20


def user_name(uid: int) -> str:
    """Name a user.

    Args:
        uid: the user's number.

    Returns:
        The name, or the number where the list has none.

    Example:
        >>> user_name(0), user_name(987_654_321)
        ('root', 'uid 987654321')
    """
    try:
        with open("/etc/passwd", encoding="utf-8", errors="replace") as file:
            for line in file.read(_MOST_BYTES).splitlines():
                fields = line.split(":")
                if len(fields) > 2 and fields[2] == str(uid):
                    return fields[0]
    except OSError:
        pass
    return f"uid {uid}"
