"""The port for the operator and the other activators: whether a service's requests come in here, and what is held.

Plain HTTP and GET only; the chart's NetworkPolicy says who reaches it. Nothing here is about what requests say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from llmservice_operator.api.service import Key
from llmservice_operator.process.health import PortTaken

from llmservice_activator.peers import HELD_PATH, VERSION, exposed
from llmservice_activator.services import Services

SERVICE_PATH = "/services/{namespace}/{name}"
LARGEST_LINE = 2048
"""Bytes of a request's line and of each header."""
LONGEST_PROBLEM = 512
"""Characters."""
LONGEST_UID = 64


class Internal:
    """Answers from the process's event loop."""

    def __init__(
        self,
        services: Services,
        *,
        held: Callable[[], Mapping[Key, tuple[int, int]]],
        is_listening: Callable[[str, int], bool],
        leads_here: Callable[[Key], bool],
        is_reached: Callable[[Key, str, int], Awaitable[bool]],
        problem: Callable[[Key], str],
        asked: Callable[[Key], None],
    ) -> None:
        """`held`: requests and bytes by service. `leads_here`: requests of a service may be sent here. `asked`: called
        with each service that is asked for."""
        self._services, self._held, self._problem, self._asked = services, held, problem, asked
        self._is_listening, self._leads_here, self._is_reached = is_listening, leads_here, is_reached
        self._runner: web.AppRunner | None = None

    async def start(self, port: int) -> None:
        """Listen; PortTaken."""
        app = web.Application()
        # No HEAD beside it.
        app.router.add_get(HELD_PATH, self._all_held, allow_head=False)
        app.router.add_get(SERVICE_PATH, self._service, allow_head=False)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.2, max_line_size=LARGEST_LINE, max_field_size=LARGEST_LINE
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, None, port).start()
        except (OSError, OverflowError) as error:
            await self.stop()
            raise PortTaken(f"cannot listen on port {port}: {error}. Choose another with --internal-port.") from error

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _all_held(self, _: web.Request) -> web.Response:
        return web.Response(body=exposed(self._held()), content_type="application/json")

    async def _service(self, request: web.Request) -> web.Response:
        key = Key(request.match_info["namespace"], request.match_info["name"])
        uid, port = request.query.get("uid", "")[:LONGEST_UID], request.query.get("port", "")
        if not (port.isascii() and port.isdecimal() and len(port) <= 5):
            return web.json_response({"error": "port is no number"}, status=400)
        service = self._services.find(key)
        if service is None or service.zero is None or service.uid != uid:
            return web.json_response({"error": "there is no such service that may be at zero"}, status=404)
        self._asked(key)
        # The operator points the slices at whoever listens: where its watches lag, it would refuse what comes.
        is_listening = self._is_listening(uid, int(port)) and self._leads_here(key)
        answer = {
            "version": VERSION,
            "listening": is_listening,
            "reachable": is_listening and await self._is_reached(key, uid, service.zero.service_port),
            "problem": self._problem(key)[:LONGEST_PROBLEM],
            "held": self._held().get(key, (0, 0))[0],
        }
        return web.json_response(answer)
