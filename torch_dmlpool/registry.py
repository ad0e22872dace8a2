"""Which operators are registered, and how their schemas begin."""

from typing import Any

# A seventh argument would change Window.arguments and each slice of six window arguments in the
# package.
WINDOW_SCHEMA = (
    "SymInt[] window_size, SymInt[] strides, SymInt[] start_padding, SymInt[] end_padding, "
    "SymInt[] dilations, bool ceil_mode"
)
OPERATORS: dict[str, Any] = {}
"""All registered operators, each a ``registration.Operator``, by their names."""
