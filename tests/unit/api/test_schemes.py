"""The schemes of spec.model.uri: what the operator knows of each and what the fetch container knows agree."""

from __future__ import annotations

import pytest
from llmservice_api.model import ACCESS_FIELDS, ACCESSES, FETCHED, SCHEMES, Model, Scheme, is_fetched, parse, scheme_of
from llmservice_fetch.clouds import CLOUDS
from llmservice_fetch.origins import schemes
from pydantic.alias_generators import to_camel


def test_every_scheme_that_is_fetched_has_an_origin() -> None:
    assert set(FETCHED) == {"hf", *CLOUDS}
    assert schemes() == "hf://, s3://, gs:// or az://"
    assert schemes("a folder") == "hf://, s3://, gs://, az:// or a folder"


@pytest.mark.parametrize(("name", "scheme"), SCHEMES.items(), ids=SCHEMES)
def test_a_scheme_has_an_access_where_its_source_is_fetched(name: str, scheme: Scheme) -> None:
    example = scheme.shortest.lower()
    assert example.startswith(f"{name}://")
    assert scheme_of(example) is scheme
    assert is_fetched(parse(example)) is (scheme.access is not None)


def test_every_access_is_a_field_of_the_model() -> None:
    assert len(ACCESSES) == len(ACCESS_FIELDS)
    assert set(Model.model_fields) >= ACCESS_FIELDS
    assert sorted(name for names in ACCESSES.values() for name in names) == sorted(FETCHED)


@pytest.mark.parametrize("name", CLOUDS)
def test_the_fetch_container_names_the_fields_of_the_spec(name: str) -> None:
    scheme, cloud = SCHEMES[name], CLOUDS[name]
    assert scheme.access is not None
    section = f"spec.model.{to_camel(scheme.access.field)}"
    assert cloud.wording.section == section
    remedy = None if cloud.no_account is None else cloud.no_account[1]
    assert remedy == (None if scheme.needed is None else f"Set {section}.{scheme.needed.setting}.")
