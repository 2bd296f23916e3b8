"""Names of the API that users type. What the pods and the operator share is in `llmservice_runtime.contract`."""

from typing import Final

GROUP: Final = "llmservice.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "LLMService"
LIST_KIND: Final = "LLMServiceList"
PLURAL: Final = "llmservices"
SINGULAR: Final = "llmservice"
SHORT_NAMES: Final = ("llms",)
CATEGORIES: Final = ("all",)
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

UPDATE_REQUESTED_ANNOTATION: Final = f"{GROUP}/update-requested"
NAME_MAX_LENGTH: Final = 50
DEFAULT_ENDPOINT_PORT: Final = 80
DEFAULT_DRAIN_SECONDS: Final = 120
