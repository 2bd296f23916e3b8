"""The web page in a real browser, on a real cluster: signing in, fleet, service, sizing, rights, accessibility."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.conftest import own_namespace
from tests.support.cluster import Cluster, CommandFailed
from tests.support.page import Watched, allow, chromium, install, opened, violations
from tests.support.patience import PATIENCE
from tests.support.services import MILLION_TOKENS, llmservice, stand_in
from tests.unit.cli_world import LLAMA_8B

pytestmark = pytest.mark.parallel

PAGE, TEAM = "ui-page", "ui-team"
PROXY = {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}
SLOW = 60_000
"""Milliseconds in which something is seen on a busy machine."""
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J"


@dataclass(frozen=True)
class Site:
    """The page, with services to show."""

    cluster: Cluster
    browser: Browser

    def context(self, scheme: str = "light") -> Watched:
        context = self.browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
        context.set_default_timeout(SLOW)
        return Watched.of(context.new_page())


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Iterator[Site]:
    with own_namespace(cluster, PAGE), own_namespace(cluster, TEAM), sync_playwright() as playwright:
        browser = chromium(playwright)
        cluster.apply_all([stand_in("chat"), stand_in("broken", runtime={"extraArgs": ["--no-such-flag"]})], TEAM)
        too_long = llmservice("large", model={"architecture": MILLION_TOKENS}, batching={"maxModelLen": None})
        cluster.apply(too_long, PAGE)
        allow(cluster, TEAM, "viewer", PROXY)
        install(cluster, PAGE)
        cluster.wait_condition(TEAM, "chat", "Ready", "True")
        cluster.wait_condition(TEAM, "broken", "Stalled", "True")
        yield Site(cluster, browser)
        browser.close()


@pytest.fixture(scope="module")
def opening(site: Site) -> Iterator[str]:
    """The address that `llmservice ui` prints for a viewer who may read one namespace only."""
    with opened(site.cluster, PAGE, f"{TEAM}/viewer") as found:
        yield found


@pytest.fixture(scope="module")
def token(site: Site) -> str:
    """Of the same viewer."""
    return site.cluster.kubectl("create", "token", "viewer", "-n", TEAM, "--duration=1h").strip()


@pytest.fixture
def address(opening: str, token: str) -> str:
    """As the command gets one for each run, by its port-forward."""
    answer = httpx.post(f"{base_of(opening)}/sign-in/token", json={"token": token}, trust_env=False, timeout=PATIENCE)
    return base_of(opening) + str(answer.json()["path"])


def base_of(address: str) -> str:
    return address.partition("/sign-in")[0]


def quiet(watched: Watched, address: str) -> None:
    """Nothing was complained about, and nobody else was asked."""
    assert watched.complaints == []
    assert watched.hosts == {base_of(address).removeprefix("http://")}


def test_a_viewer_signs_in_and_sees_their_namespace_only(site: Site, opening: str) -> None:
    watched, address = site.context(), opening
    page = watched.page
    page.goto(address)
    assert page.url == f"{base_of(address)}/", "the code stays in no address"
    expect(page.get_by_role("row")).to_have_count(3)
    expect(page.locator("#part")).to_contain_text(f"2 services in namespace {TEAM}; 1 needs attention")
    expect(page.get_by_role("row").nth(1)).to_contain_text("stalled")
    expect(page.get_by_role("row").nth(2)).to_contain_text("ready")
    assert "large" not in page.content()
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert "." not in cookie["value"], "no token of the cluster"
    expect(page.get_by_role("row").nth(2)).to_contain_text(re.compile(r"\d\.\d"), timeout=SLOW)
    quiet(watched, address)

    refused = page.goto(f"{base_of(address)}/?namespace={PAGE}")
    assert refused is not None
    assert refused.status == 403
    expect(page.get_by_role("alert")).to_contain_text("needs list llmservices.llmservice.dev")
    expect(page.locator("main")).to_contain_text("--clusterrole=view --serviceaccount=ui-team:viewer")

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("alert")).to_contain_text("You are signed out")
    page.goto(f"{base_of(address)}/")
    assert page.url.endswith("/sign-in")
    page.goto(address)
    expect(page.get_by_role("alert")).to_contain_text("was used before")


def test_a_token_can_be_pasted(site: Site, address: str, token: str) -> None:
    watched = site.context()
    page = watched.page
    page.goto(f"{base_of(address)}/services/{TEAM}/broken")
    page.get_by_label("Token").fill("nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("broken")
    assert token not in page.url
    assert watched.hosts == {base_of(address).removeprefix("http://")}


def test_a_services_page_has_its_remedy_and_follows_it(site: Site, address: str) -> None:
    watched = site.context()
    page = watched.page
    page.goto(address)
    page.get_by_role("link", name="broken").click()
    expect(page.locator("#part")).to_contain_text("vLLM 0.32.0 has no flag --no-such-flag")
    expect(page.locator("#part")).to_contain_text("UnknownFlag, what to do: Correct the flag")
    before = page.evaluate("performance.timeOrigin")
    site.cluster.patch("llmservices", TEAM, "broken", {"spec": {"runtime": {"extraArgs": ["--nor-this-one"]}}})
    expect(page.locator("#part")).to_contain_text("has no flag --nor-this-one", timeout=SLOW)
    assert page.evaluate("performance.timeOrigin") == before, "without a reload"
    quiet(watched, address)


def test_the_planner_answers_in_the_browser(site: Site, address: str) -> None:
    watched = site.context()
    page = watched.page
    page.goto(address)
    page.get_by_role("link", name="Sizing").click()
    page.get_by_label("config.json of the model").fill(json.dumps(LLAMA_8B))
    page.get_by_label("GPUs", exact=True).fill("T4, H100")
    page.get_by_role("button", name="What fits?").click()
    row = page.get_by_role("row").filter(has_text="NVIDIA-H100-80GB-HBM3")
    expect(row).to_contain_text("Fits")
    expect(page.get_by_role("row").filter(has_text="Tesla-T4")).to_contain_text("Does not fit")
    quiet(watched, address)


def test_events_of_others_are_text(site: Site, address: str) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "hostile"},
        "involvedObject": {
            "kind": "LLMService",
            "name": "chat",
            "namespace": TEAM,
            "apiVersion": "llmservice.dev/v1alpha1",
        },
        "reason": "Hostile",
        "type": "Warning",
        "message": HOSTILE,
        "lastTimestamp": "2100-01-01T00:00:00Z",
    }
    site.cluster.apply(event, TEAM)
    watched = site.context()
    page = watched.page
    page.on("dialog", lambda dialog: watched.complaints.append(dialog.message))
    page.goto(address)
    page.goto(f"{base_of(address)}/services/{TEAM}/chat")
    shown = page.locator(".timeline li").filter(has_text="Hostile")
    expect(shown).to_contain_text("<script>alert(1)</script><img src=x onerror=alert(2)> [2J")
    assert page.locator("main script, main img").count() == 0
    planted = "document.querySelector('.timeline').insertAdjacentHTML('beforeend', '<img src=x onerror=alert(3)>')"
    with page.expect_console_message(lambda message: "inline event handler" in message.text):
        page.evaluate(planted)  # what escaping would miss, the policy stops
    assert not {"1", "2", "3"} & set(watched.complaints)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, site: Site, address: str) -> None:
    watched = site.context(scheme)
    page, found = watched.page, {}
    page.goto(f"{base_of(address)}/sign-in")
    found["sign-in"] = violations(Axe().run(page).response)
    page.goto(address)
    for path in ("/", f"/services/{TEAM}/broken", f"/services/{TEAM}/chat", f"/?namespace={PAGE}", "/sizing"):
        page.goto(base_of(address) + path)
        if path == "/sizing":
            page.get_by_label("config.json of the model").fill(json.dumps(LLAMA_8B))
            page.get_by_label("GPUs", exact=True).fill("H100")
            page.get_by_role("button", name="What fits?").click()
            page.get_by_text("Why", exact=True).click()
        found[path] = violations(Axe().run(page).response)
    assert {path: rules for path, rules in found.items() if rules} == {}


def focused(page: Page) -> str:
    """What has the keyboard, by its id or its text."""
    found: str = page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
    return found


def test_everything_is_reached_by_the_keyboard_and_keeps_it(site: Site, address: str) -> None:
    watched = site.context()
    page = watched.page
    page.goto(address)
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    page.keyboard.press("Tab")
    assert focused(page) == "q"
    page.keyboard.type("broken")
    expect(page.get_by_role("row")).to_have_count(2)
    assert (focused(page), page.url) == ("q", f"{base_of(address)}/?q=broken")
    expect(page.get_by_role("status")).to_contain_text("1 of 2 services")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    expect(page.get_by_role("row")).to_have_count(3)
    for _ in range(12):
        page.keyboard.press("Tab")
        if focused(page) == "sort-name":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"
    page.keyboard.press("Enter")
    heading = page.get_by_role("columnheader", name="Name", exact=False).nth(1)
    expect(heading).to_have_attribute("aria-sort", "ascending")
    assert focused(page) == "sort-name"
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    assert focused(page) == "sort-name"
    page.go_back()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    quiet(watched, address)


def test_what_is_old_is_seen_to_be_old_until_it_is_read_again(site: Site, address: str) -> None:
    page = site.context().page
    page.goto(address)
    said = page.locator("#said")
    for answer, words in (
        (lambda route: route.fulfill(status=503, body="no answer"), "what is shown is old: no answer"),
        (lambda route: route.abort(), "gets no answer: what it shows is old"),
    ):
        page.route("**/*part=1*", answer)
        expect(said).to_contain_text(words, timeout=SLOW)
        expect(said).to_have_class("note bad")
        box = said.bounding_box()
        assert box is not None
        assert box["height"] > 20, "seen, not only read aloud"
        page.unroute("**/*part=1*")
        expect(said).to_have_class("hidden", timeout=SLOW)
        expect(said).to_have_text("")


def test_a_box_that_scrolls_stays_where_it_is(site: Site, address: str) -> None:
    page = site.context().page
    page.set_viewport_size({"width": 320, "height": 640})
    page.goto(address)
    page.locator(".scroll").evaluate(
        "box => { box.scrollLeft = 40; box.focus(); box.firstElementChild.id = 'before'; }"
    )
    expect(page.locator("#before")).to_have_count(0, timeout=SLOW)
    found = page.evaluate("[document.activeElement.className, document.querySelector('.scroll').scrollLeft]")
    assert found == ["scroll", 40]


def test_half_a_name_of_a_namespace_is_not_asked_for(site: Site, address: str) -> None:
    page = site.context().page
    page.goto(address)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#namespace").press_sequentially(TEAM, delay=100)
    page.wait_for_timeout(500)
    page.keyboard.press("Tab")
    expect(page).to_have_url(f"{base_of(address)}/?namespace={TEAM}")
    assert {found for url in asked for found in re.findall(r"namespace=([^&]*)", url)} == {TEAM}


def test_it_works_without_scripts(site: Site, address: str) -> None:
    context = site.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    page.locator("#q").fill("broken")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name="Age").click()
    assert "sort=age" in page.url
    page.get_by_role("link", name="broken").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("broken")
    context.close()


def test_a_kubeconfig_with_a_certificate_is_told_what_to_do(site: Site) -> None:
    with pytest.raises(CommandFailed, match="--service-account NAMESPACE/NAME"):
        site.cluster.run(sys.executable, "-m", "llmservice_cli", "ui", "--no-open", "--page-namespace", PAGE)


def test_the_pages_own_pod_has_no_token_and_no_rights(site: Site) -> None:
    pods = site.cluster.list("pods", PAGE, "app.kubernetes.io/component=ui")
    (pod,) = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
    volumes = [kind for volume in pod["spec"]["volumes"] for kind in volume if kind != "name"]
    assert sorted(volumes) == ["configMap", "emptyDir"]
    account = f"system:serviceaccount:{PAGE}:{pod['spec']['serviceAccountName']}"
    can = site.cluster.kubectl("auth", "can-i", "list", "llmservices", "-A", "--as", account, expect=None)
    assert can.strip().startswith("no")
