"""Pictures of the web page in docs/ui, of real services on the local cluster (`make cluster`), in both themes.

python tools/scripts/ui_pictures.py

Services and page are made for it in namespaces of their own, which are deleted afterwards. Models of GPUs are planned
for, and not served: the cluster has none.
"""

from __future__ import annotations

import io
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from localcluster.paths import ClusterPaths  # noqa: E402
from scripts.terminal_pictures import CONFIG, FACTS  # noqa: E402
from tests.e2e.conftest import own_namespace  # noqa: E402
from tests.support.cluster import JSON, Cluster, eventually  # noqa: E402
from tests.support.page import allow, chromium, install, opened  # noqa: E402
from tests.support.services import llmservice, stand_in  # noqa: E402

PAGE, TEAM, SMALL, LARGE = "ui-pictures-page", "team-a", "assistant", "qwen-7b"
FOLDER = ROOT / "docs" / "ui"
SIZE = ViewportSize(width=1280, height=820)
COLOURS = 64
MOST_BYTES = 150_000
PATIENCE = 120_000
PROXY = {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}


def manifests() -> list[JSON]:
    """One that serves, one whose process failed, one that does not fit, one that waits for its node."""
    facts = {name: CONFIG[key] for name, key in FACTS.items()}
    cut = {"accelerator": {"type": "nvidia", "products": ["NVIDIA-L4"]}, "batching": {"maxModelLen": 131_072}}
    large = llmservice(LARGE, model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "architecture": facts}, **cut)
    return [
        stand_in(SMALL),
        stand_in("coder", {"fails": "gpu-out-of-memory"}),
        stand_in("summaries", scaling={"replicas": 2}),
        large,
    ]


@contextmanager
def services(cluster: Cluster) -> Iterator[None]:
    with own_namespace(cluster, PAGE), own_namespace(cluster, TEAM):
        cluster.apply_all(manifests(), TEAM)
        allow(cluster, TEAM, "viewer", PROXY)
        install(cluster, PAGE)
        cluster.wait_condition(TEAM, SMALL, "Ready", "True")
        cluster.wait_condition(TEAM, "summaries", "Ready", "True")
        cluster.wait_condition(TEAM, LARGE, "Stalled", "True")
        eventually("the failure of coder", lambda: cluster.failure(TEAM, "coder"), 300)
        yield


@contextmanager
def load(cluster: Cluster) -> Iterator[None]:
    """One answer after the other, for the column tokens/s. One that fails is followed by the next."""
    ended = threading.Event()
    path = f"/api/v1/namespaces/{TEAM}/services/{SMALL}:80/proxy/v1/completions"
    body = {"model": SMALL, "prompt": "Hello", "max_tokens": 100}

    def send() -> None:
        while not ended.is_set():
            try:
                cluster.api.post(path, json=body)
            except httpx.HTTPError as error:
                print(f"a request failed: {error}", file=sys.stderr)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def draw(page: Page, name: str, scheme: str) -> None:
    place = FOLDER / f"{name}-{scheme}.png"
    drawn = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    drawn.convert("RGB").quantize(COLOURS).save(place, optimize=True)
    size = place.stat().st_size
    assert size <= MOST_BYTES, f"{place} has {size} bytes"
    print(f"wrote {place.relative_to(ROOT)}, {size // 1000} kB")


def pictures(page: Page, address: str, scheme: str) -> None:
    base = address.partition("/sign-in")[0]
    page.goto(address)
    busy = page.get_by_role("row").filter(has_text=SMALL).first
    expect(busy.locator("td, th").nth(6)).to_have_text(re.compile(r"[1-9][\d,]*\.\d"), timeout=PATIENCE)
    draw(page, "fleet", scheme)
    page.goto(f"{base}/services/{TEAM}/{LARGE}")
    draw(page, "service", scheme)
    page.goto(f"{base}/services/{TEAM}/coder")
    draw(page, "failure", scheme)
    page.goto(f"{base}/sizing")
    page.get_by_label("config.json of the model").fill(json.dumps(CONFIG, indent=2))
    page.get_by_label("GPUs", exact=True).fill("T4, L4, L40S, A100-80, H100")
    page.get_by_role("button", name="What fits?").click(timeout=PATIENCE)
    expect(page.get_by_role("row").filter(has_text="NVIDIA-L40S")).to_be_visible(timeout=PATIENCE)
    draw(page, "sizing", scheme)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    cluster = Cluster.connect(ClusterPaths.of_this_clone())
    with cluster.api, services(cluster), load(cluster), sync_playwright() as playwright:
        browser = chromium(playwright)
        for scheme in ("light", "dark"):
            with opened(cluster, PAGE, f"{TEAM}/viewer") as address:
                context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light", viewport=SIZE)
                context.set_default_timeout(PATIENCE)
                pictures(context.new_page(), address, scheme)
                context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
