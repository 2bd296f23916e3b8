"""The pages: what each reads, and with which words it refuses. Every read carries the token of the viewer.

Texts of others are shown escaped by jinja2, bounded, and without control characters.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from kubeloop.errors import Forbidden, KubeError, Unauthorized, Unreachable, lacks_right
from llmservice_cli.cluster import cli_error, why
from llmservice_cli.errors import CliError
from llmservice_cli.revisions import Revision, recorded
from llmservice_cli.status.document import shown as figure
from llmservice_cli.status.snapshot import snapshot
from llmservice_cli.text import age
from llmservice_runtime.bounded_json import clean
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from llmservice_ui.sessions import SignIn, cookie_of, sign_in_address

from .fleet import ATTENTION, COLUMNS, NEEDS_ATTENTION, Query, State, page_of
from .guard import HEALTH_PATH, Guard, form_of
from .service_view import view
from .sessions import Session, Sessions, Settings, Viewer
from .sizing import MOST_CONFIG, Asked, Sized, Sizer

# Why a page cannot be shown, and what to do about it.


@dataclass(frozen=True, slots=True)
class Problem:
    """A page of its own."""

    code: int
    title: str
    message: str
    remedy: str
    command: str = ""
    """For an administrator."""
    asks_namespace: bool = False
    """Whether naming a namespace may help."""


def problem_of(error: KubeError | CliError, viewer: Viewer, path: Mapping[str, Any]) -> Problem:
    """`path` has the namespace, where the page is of one."""
    if lacks_right(error):
        return _missing_right(error, viewer, str(path.get("namespace", "")))
    found = error if isinstance(error, CliError) else cli_error(error)
    if isinstance(error, Unreachable):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "The API server gives no answer", found.message, found.remedy)
    if isinstance(error, CliError):
        return Problem(HTTPStatus.NOT_FOUND, "There is nothing under this address", found.message, found.remedy)
    return Problem(HTTPStatus.BAD_GATEWAY, "The API server refuses to answer", found.message, found.remedy)


def _missing_right(error: Forbidden, viewer: Viewer, namespace: str) -> Problem:
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    binding = (
        ["kubectl", "create", "rolebinding", "llmservices-view", "-n", namespace]
        if namespace
        else ["kubectl", "create", "clusterrolebinding", "llmservices-view"]
    )
    return Problem(
        HTTPStatus.FORBIDDEN,
        "A right is missing",
        f"{viewer.name} needs {error.right} {where}: {error.message}",
        "Ask an administrator for the role view there, which has it" + ("." if namespace else ", or name a namespace."),
        shlex.join([*binding, "--clusterrole=view", viewer.as_subject]),
        asks_namespace=not namespace,
    )


LONGEST = 4096
"""Characters of one text on a page."""
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that turn the order of what follows: a name could look like another one."""


def shown(value: Any) -> Any:
    """What stands for a value in a page. Templates give it every expression, so none is forgotten."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    text = str(value)
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
    return _DIRECTION.sub("\ufffd", clean(text))


def whole(text: Any) -> Markup:
    """The text at its length, for a field whose content is sent again."""
    return escape(clean(str(text)))


def words(name: str) -> str:
    """DoesNotFit -> does not fit."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def css(word: str) -> str:
    """A word as the name of a class; `other` for one that may be anybody's."""
    found = word.replace(" ", "-")
    return found if re.fullmatch(r"[A-Za-z-]{1,32}", found, re.ASCII) else "other"


def environment() -> Environment:
    """Templates that escape everything, and fail for a name that they are not given."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["age"] = lambda stamp: age(str(stamp), datetime.now(UTC))
    made.filters["figure"] = figure
    made.filters["quote"] = lambda text: quote(str(text))
    made.filters["whole"] = whole
    made.filters["words"] = words
    made.filters["css"] = css
    return made


PART = "part"
"""A request with this in its address gets the part of the page that changes."""

Handler = Callable[[Request], Awaitable[Response]]
Page = Callable[["Pages", Request, Session], Awaitable[Response]]


@dataclass(frozen=True)
class Pages:
    """The pages of a viewer who is signed in."""

    settings: Settings
    sessions: Sessions
    templates: Environment
    sizer: Sizer

    def answer(self, request: Request, name: str, session: Session, code: int = 200, **values: Any) -> Response:
        """A page, or its part that changes."""
        template = f"_{name}.html" if PART in request.query_params else f"{name}.html"
        common = {"viewer": session.viewer, "hub": self.sizer.can_reach_hub}
        text = self.templates.get_template(template).render(**common, **values)
        return HTMLResponse(text, code)

    def signed_in(self, page: Page) -> Handler:
        """The page for who is signed in; others are sent to the form, and what is refused comes with its remedy."""

        async def handle(request: Request) -> Response:
            cookie = request.cookies.get(cookie_of(request))
            session = await self.sessions.find(cookie)
            if session is None:
                return _to_sign_in(request, "")
            try:
                return await page(self, request, session)
            except Unauthorized:
                await self.sessions.end(cookie)
                return _to_sign_in(request, "expired")
            except (KubeError, CliError) as error:
                return self.refused(request, session, problem_of(error, session.viewer, request.path_params))

        return handle

    def refused(self, request: Request, session: Session, problem: Problem) -> Response:
        if PART in request.query_params:
            return PlainTextResponse(problem.title, problem.code)
        text = self.templates.get_template("problem.html").render(viewer=session.viewer, problem=problem)
        return HTMLResponse(text, problem.code)


def _to_sign_in(request: Request, why: str) -> Response:
    if PART in request.query_params:
        return PlainTextResponse("Sign in again.", HTTPStatus.UNAUTHORIZED)
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(sign_in_address(address if request.method == "GET" else "/", why), HTTPStatus.SEE_OTHER)


async def fleet(pages: Pages, request: Request, session: Session) -> Response:
    """Every service that the viewer may list."""
    query = Query.of(request.query_params)
    found = await session.fleet.read(session.kube, query.namespace, session.namespace, pages.settings.operator)
    page = page_of(found.rows, query)
    keys = [(row.namespace, row.name) for row in page.rows]
    return pages.answer(
        request,
        "fleet",
        session,
        fleet=found,
        page=page,
        query=query,
        columns=COLUMNS,
        states=list(State),
        attention=ATTENTION,
        urgent=sum(row.state in NEEDS_ATTENTION for row in found.rows),
        measured=session.meter(query).measure(session.kube, found.namespace, keys),
    )


async def one_service(pages: Pages, request: Request, session: Session) -> Response:
    """One service, as `llmservice status NAME` has it."""
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    seen = await snapshot(session.kube, namespace, name, is_live=False)
    measured = session.meter((namespace, name)).measure(session.kube, namespace, [(namespace, name)])
    return pages.answer(
        request,
        "service",
        session,
        service=view(seen, await _revisions(session, namespace, name)),
        measured=measured,
        total=measured.services.get((namespace, name)),
    )


async def _revisions(session: Session, namespace: str, name: str) -> tuple[Revision, ...] | str:
    try:
        return await recorded(session.kube, namespace, name)
    except Unauthorized:
        raise
    except KubeError as error:
        return f"not listed: {why(error, namespace)}"


async def sizing(pages: Pages, request: Request, session: Session) -> Response:
    """What fits where."""
    if request.method == "GET":
        return pages.answer(request, "sizing", session, asked=Asked(), sized=None)
    asked = Asked.of(await form_of(request, MOST_CONFIG * 3))
    problems = asked.problems(can_reach_hub=pages.sizer.can_reach_hub)
    if problems:
        sized = Sized(problems=problems, is_bad_input=True)
    else:
        sized = await pages.sizer.plan_for(session.viewer.name, asked)
    code = HTTPStatus.OK if sized.grid else HTTPStatus.UNPROCESSABLE_ENTITY
    return pages.answer(request, "sizing", session, code, asked=asked, sized=sized)


async def _healthy(request: Request) -> Response:
    return PlainTextResponse("ok\n")


def application(settings: Settings, sizer: Sizer, sessions: Sessions | None = None) -> Guard:
    """All of it, as ASGI."""
    held = Sessions(settings) if sessions is None else sessions
    templates = environment()
    pages = Pages(settings, held, templates, sizer)
    signing_in = SignIn(held, templates)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        sweeping = asyncio.create_task(held.sweep_for_ever(), name="ends sessions that are over")
        yield {}
        sweeping.cancel()
        await asyncio.wait({sweeping})
        await held.close()

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return PlainTextResponse(f"{error.detail}\n", error.status_code)

    async def failed(request: Request, error: Exception) -> Response:
        return PlainTextResponse("This page failed; the log of its pod has the error. Others may work.\n", 500)

    app = Starlette(
        routes=[
            Route("/", pages.signed_in(fleet)),
            Route("/services/{namespace}/{name}", pages.signed_in(one_service)),
            Route("/sizing", pages.signed_in(sizing), methods=["GET", "POST"]),
            *signing_in.routes,
            Route(HEALTH_PATH, _healthy),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ],
        exception_handlers={HTTPException: refused, Exception: failed},
        lifespan=lifespan,
    )
    return Guard(app, settings.hosts)
