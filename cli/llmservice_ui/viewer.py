"""Whose token it is, and when it ends."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from kubeloop.errors import Unauthorized
from kubeloop.resources import Resource
from llmservice_cli.api import Api
from llmservice_runtime.bounded_json import Reader, Refused, parse

LONGEST_TOKEN = 32 * 1024
"""Characters; tokens of identity providers name every group of a user."""
LONGEST_NAME = 512
SELF = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user of the cluster, as the API server calls them."""

    name: str

    @property
    def as_subject(self) -> str:
        """For `kubectl create rolebinding`."""
        parts = self.name.split(":")
        if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"]:
            return f"--serviceaccount={parts[2]}:{parts[3]}"
        return f"--user={self.name}"

    @property
    def namespace(self) -> str:
        """Where its service account is; empty for others."""
        parts = self.name.split(":")
        return parts[2] if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] else ""


async def viewer(kube: Api) -> Viewer:
    """The user of the token that `kube` sends. Every user may ask that. KubeError; Unauthorized where it is none's."""
    answer = await kube.review(SELF, {})
    try:
        name = Reader(answer).within("status").within("userInfo").text("username", LONGEST_NAME)
    except Refused as refused:
        raise Unauthorized(f"the API server does not say whose token it is: {refused}") from None
    if name == "system:anonymous":
        raise Unauthorized("the API server takes it for nobody's token")
    return Viewer(name)


def ends_at(token: str) -> float | None:
    """Seconds of the epoch after which a JSON Web Token is not accepted; None for one that is opaque or does not end.

    Nothing is trusted that it says: the API server checks it with each request.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return Reader(parse(claims)).number("exp")
    except (Refused, binascii.Error, ValueError):
        return None


def is_token(text: str) -> bool:
    """Whether it can stand in an Authorization header at all."""
    return 0 < len(text) <= LONGEST_TOKEN and all("!" <= letter <= "~" for letter in text)
