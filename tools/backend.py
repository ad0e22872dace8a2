"""The build backend: setuptools', which asks for zig where no other compiler works.

Its editable installs name the folder of the checkout, so that type checkers and editors find the
package.
"""

from typing import Any

import compilers
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that are setuptools' own

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_wheel(config_settings) + compilers.required()


# An editable install is built from the same.
get_requires_for_build_editable = get_requires_for_build_wheel


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """A path file in place of setuptools' import hook, which no type checker understands."""
    settings = {"editable_mode": "compat"} | (config_settings or {})
    return build_meta.build_editable(wheel_directory, settings, metadata_directory)
