"""Whose requests are whose at a Gateway, by the routes that are watched and those that are being written."""

from __future__ import annotations

from kubeloop.resources import Key
from llmservice_api.constants import HTTP_ROUTE

from llmservice_operator.facts.routes import Claim
from llmservice_operator.service.context import Context
from llmservice_operator.service.watch import PARENT


def rival_of(claim: Claim, key: Key, ctx: Context) -> Key | None:
    """Another service whose route takes some of these requests; `key` is the asking one. Routes that no LLMService of
    this operator has, or that their Gateway rejects, keep nobody out: anybody may write some."""
    for held, claims in ctx.claimed.items():
        is_same_team = held.namespace == key.namespace
        if held != key and any(claim.is_rival(each, is_same_team=is_same_team) for each in claims):
            return held
    for at in claim.rivals():
        for route in ctx.cache.indexed(HTTP_ROUTE.kind, at):
            other = Key(route.namespace, route.service)
            owner = ctx.cache.get(PARENT, *other)
            is_valid = owner is not None and route.owner_uid == owner.uid and not route.is_rejected
            is_same_team = other.namespace == key.namespace
            if other != key and is_valid and any(claim.is_rival(it, is_same_team=is_same_team) for it in route.claims):
                return other
    return None
