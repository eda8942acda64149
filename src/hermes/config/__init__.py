"""config.yaml: every key with its default, read once and checked as a whole.

`settings_schema` lists the keys; `load_config` reads the file. `${VAR}` and `${VAR:-default}` are expanded from the environment
and from `<home>/.env`; every mistake (an unknown key, a value of the wrong type, broken YAML) is reported with
the file, the line and, for a misspelt key, the name that was probably meant. `editing` changes the file and keeps the rest
of it as it was.
"""

from hermes.config.loading import config_path, environment, load_config, parse_config
from hermes.config.settings_schema import Auxiliary, Config, McpServer, suggestion

__all__ = [
    "Auxiliary",
    "Config",
    "McpServer",
    "config_path",
    "environment",
    "load_config",
    "parse_config",
    "suggestion",
]
