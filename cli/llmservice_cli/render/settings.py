"""The operator's settings by which a decision is made: of a file, else the chart's defaults."""

from __future__ import annotations

import yaml
from llmservice_operator.manifests.settings import InvalidSettings, Settings
from llmservice_operator.options import version

from llmservice_cli.errors import BadInput, read_text, syntax

OPTION = "--settings"
_REMEDY = "Give the operator's settings file, or the chart's values: a mapping with `services`."


def defaults() -> Settings:
    """As the chart installs this version where nobody sets `services` in its values."""
    return Settings(operator_image=f"llmservice-operator:{version()}", image_pull_policy="IfNotPresent")


def of_file(place: str) -> Settings:
    """Of the operator's settings file, or of values of its chart; BadInput names what is wrong in it."""
    try:
        return of_text(read_text(place, OPTION, _REMEDY))
    except InvalidSettings as invalid:
        raise BadInput.of(OPTION, f"{place}: {invalid}.", _REMEDY) from None


def of_text(text: str) -> Settings:
    """Of the content of a settings file; InvalidSettings says what is wrong in it."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidSettings(f"it is no YAML: {syntax(error)}") from None
    services = content.get("services") if isinstance(content, dict) else None
    if not isinstance(services, dict):
        raise InvalidSettings("it has no mapping `services`")
    image = {"operatorImage": defaults().operator_image, "imagePullPolicy": defaults().image_pull_policy}
    return Settings.from_mapping({**image, **services})
