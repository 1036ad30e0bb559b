"""What the command and the store promise, seen from outside: nothing private of the package is imported here."""
