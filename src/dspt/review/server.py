"""The page of a report, served on this machine alone, where a person decides about labels.

Whoever can reach the page can change decisions and see the images, so that every request needs a token that only the
one who started it was told, comes from this machine, and, if it changes anything, from the page itself. Nothing is
served but the page, its data, and images of the audit, which are asked for by number.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspt.auditing import folder
from dspt.auditing.audit import Audit
from dspt.auditing.report import (
    OpenPicture,
    as_json,
    encoded,
    mime,
    page_data,
    page_file,
    served_page,
    sheet_places,
    thumbnail,
)
from dspt.data.images import open_image
from dspt.internal.errors import FileError, InputError, one_line, summary
from dspt.internal.files import parse_json
from dspt.review.decisions import KEEP, RELABEL, Decision, Decisions

# What makes an audit again from what was decided: the same samples in the same order.
Refit = Callable[[Path, dict[int, Decision]], Audit]

ADDRESS = "127.0.0.1"
# What is asked of rows that are to be no longer removed.
RESTORE = "restore"
# The longer side of a picture that is looked at closely.
LARGEST = 1024
# More than a decision about every sample of a million needs.
MOST_BYTES = 32 * 2**20

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def serve(
    report: Path | str,
    port: int = 0,
    say: Callable[[str], Any] = print,
    open_browser: bool = False,
    refit: Refit | None = None,
    budget: int | None = None,
) -> None:
    """Serve the page of a report on this machine until Ctrl-C; `say` is told its address.

    Parameters
    ----------
    report : Path or str
        The folder of the report.
    port : int
        The port; 0 takes a free one.
    say : callable
        Is called with lines for the user.
    open_browser : bool
        Whether to open the page in the user's browser.
    refit : callable, optional
        Gives a new audit from the report and the decisions; None leaves it out.
    budget : int, optional
        Show so many labels that are worth a look first, instead of those called wrong.
    """
    import uvicorn

    report = Path(report)
    token = secrets.token_urlsafe(24)
    with _listening(port) as listener:
        port = listener.getsockname()[1]
        app = make_app(report, token, port=port, refit=refit, budget=budget)
        address = f"http://{ADDRESS}:{port}/?token={token}"
        if faults := app.state.review.decisions.faults():
            say(f"Decisions about what is not there any more: {summary(faults)}")
        say(f"Review page: {address}")
        say(f"Every decision is saved at once, in {report / folder.DECISIONS}. Ctrl-C ends the review.")
        if open_browser:
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass  # the way in which a review is ended
        finally:
            app.state.review.decisions.close()


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        # What waits for the end of an earlier connection does not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"port {port}: cannot be used ({reason}); give another one, or 0 for any that is free"
        ) from None
    return listener


def make_app(
    report: Path | str,
    token: str,
    *,
    port: int,
    refit: Refit | None = None,
    budget: int | None = None,
    audit: Audit | None = None,
    open_picture: OpenPicture | None = None,
) -> Starlette:
    """Return the application that serves a report.

    Parameters
    ----------
    report : Path or str
        The folder of the report; the decisions are kept there.
    token : str
        What every request must know.
    port : int
        The port it is served on: requests that were sent to another name or port are refused.
    refit : callable, optional
        Gives a new audit, of the same samples in the same order, from the report and what is decided; None hides the
        button. If anything is decided already, what is shown first is such an audit.
    budget : int, optional
        Show so many labels that are worth a look first, instead of those called wrong.
    audit, open_picture : optional
        What the folder would be read for: the audit, and what gives the image of a row or None.
    """
    review = _Review(Path(report), refit, budget, audit, open_picture)
    hosts = {f"{ADDRESS}:{port}", f"localhost:{port}"}
    routes = [
        Route("/", review.page),
        Route("/page.css", _page_file("page.css", "text/css")),
        Route("/page.js", _page_file("page.js", "text/javascript")),
        Route("/data.json", review.data),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
        Route("/thumbs/{number:int}", review.sheet),
        Route("/thumb/{row:int}", review.thumb),
        Route("/image/{row:int}", review.image),
        Route("/decisions", review.since),
        Route("/decide", review.decide, methods=["POST"]),
        Route("/undo", review.undo, methods=["POST"]),
        Route("/refit", review.make_again, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, token=token, cookie=f"dspt-{port}", hosts=hosts)],
        exception_handlers={
            HTTPException: _refusal,
            InputError: _refusal,
            Exception: _failure,
        },
    )
    app.state.review = review
    return app


class _Review:
    """What is served: the audit as it is now, its page, and what was decided about it."""

    def __init__(
        self,
        report: Path,
        refit: Refit | None,
        budget: int | None,
        audit: Audit | None,
        open_picture: OpenPicture | None,
    ) -> None:
        self._report, self._refit, self._budget = report, refit, budget
        self._audit = folder.load(report) if audit is None else audit
        self._open_picture = open_picture or _opener(report)
        self.decisions = Decisions(report / folder.DECISIONS, self._audit.items, self._audit.class_names)
        self._about = _digest(os.path.realpath(report), *self._audit.class_names, "", *self._audit.items)
        self._refitting = threading.Lock()
        self._thumbs = report / folder.THUMBS
        self._sheets, self._places = sheet_places(self._thumbs, self._audit)
        self._pictures = bool(self._sheets) or self._has_pictures()
        self._show(self._first())

    def _first(self) -> Audit:
        """Return the audit in the light of what was decided before; as it is in the report if that does not succeed."""
        decided = self.decisions.current()
        # What was taken back since is in the report still.
        if self._refit is not None and (decided or not self._audit.open.all()):
            with suppress(InputError):  # the button says why
                return self._refitted(self._refit, decided)
        return self._audit

    def _refitted(self, refit: Refit, decided: dict[int, Decision]) -> Audit:
        audit = refit(self._report, decided)
        if audit.items != self._audit.items or audit.class_names != self._audit.class_names:
            raise InputError("the list that was made again is of other samples; start the review anew")
        return audit

    def _has_pictures(self) -> bool:
        try:
            return len(self._audit.items) > 0 and self._open_picture(0) is not None
        except InputError:
            return True  # there is one, though it cannot be shown

    def _show(self, audit: Audit) -> None:
        data = page_data(audit, self._budget, decided=self.decisions.current())
        data["images"]["place"] = [self._places.get(row, -1) for row in data["images"]["row"]]
        data["sheets"] = [f"/thumbs/{number}" for number in range(len(self._sheets))]
        data["pictures"] = self._pictures
        data["refit"] = self._refit is not None
        # Of any two lists, also of one that another process served on this port, the numbers differ.
        data["generation"], data["about"] = secrets.randbits(48), self._about
        self._shown = data["generation"], served_page(data), as_json(data).encode()
        # Where nothing can be told, nothing is likely, and nobody agrees with it or not.
        self._audit, self._likeliest = audit, audit.ranked[0] if audit.can_tell else None

    def page(self, request: Request) -> Response:
        return Response(self._shown[1], media_type="text/html")

    def data(self, request: Request) -> Response:
        return Response(self._shown[2], media_type="application/json")

    def sheet(self, request: Request) -> Response:
        number = request.path_params["number"]
        try:
            name = self._sheets[number]
            content = (self._thumbs / name).read_bytes()
        except (IndexError, OSError):
            raise HTTPException(404, "There are no such thumbnails.") from None
        return Response(content, media_type=mime(content))

    def thumb(self, request: Request) -> Response:
        content = encoded(thumbnail(self._picture(request)))
        return Response(content, media_type=mime(content))

    def image(self, request: Request) -> Response:
        picture = self._picture(request)
        picture.thumbnail((LARGEST, LARGEST), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        picture.convert("RGB").save(file, "JPEG", quality=88)
        return Response(file.getvalue(), media_type="image/jpeg")

    def _picture(self, request: Request) -> Image.Image:
        row = request.path_params["row"]
        picture = None
        if row < len(self._audit.items):
            try:
                picture = self._open_picture(row)
            except InputError as error:
                raise HTTPException(404, str(error)) from None
        if picture is None:
            raise HTTPException(404, "There is no such image.")
        return picture

    def since(self, request: Request) -> Response:
        try:
            event = int(request.query_params.get("since", "0"))
        except ValueError:
            raise HTTPException(400, "since: expected a whole number") from None
        last, changed = self.decisions.since(event)
        now = {"generation": self._shown[0], "about": self._about}
        return JSONResponse({**now, "last": last, "changed": _listed(changed)})

    async def decide(self, request: Request) -> Response:
        body = await self._body(request)
        rows, labels, action = _whole_numbers(body, "rows"), _whole_numbers(body, "labels"), str(body.get("action"))
        request_name = _request_name(body)

        def work() -> list[list[Any]]:
            if action == RESTORE:
                self.decisions.restore(rows, request_name)
                return _listed(self.decisions.of(rows))
            audit, first = self._audit, self._likeliest
            there = [0 <= row < len(audit.labels) for row in rows]
            if action == KEEP:
                for row, label in compress(zip(rows, labels, strict=False), there):
                    if label != audit.labels[row]:
                        given = f"{audit.labels[row]}, which is given,"
                        raise InputError(f"label {label}: expected {given} to keep the label of row {row}")
            actions = [action] * len(rows)
            if action == RELABEL:  # some of a selection may have the class already: these are kept
                for i, (row, label) in enumerate(zip(rows, labels, strict=False)):
                    if there[i] and label == audit.labels[row]:
                        actions[i] = KEEP
            known = None if first is None else [int(first[row]) if there[i] else -1 for i, row in enumerate(rows)]
            self.decisions.decide(rows, actions, labels, request_name, known)
            return _listed(self.decisions.of(rows))

        return JSONResponse({"changed": await run_in_threadpool(work)})

    async def undo(self, request: Request) -> Response:
        request_name = _request_name(await self._body(request))

        def work() -> dict[str, Any]:
            batch = self.decisions.undo(request_name)
            rows = [] if batch is None else self.decisions.rows(batch)
            return {"batch": batch, "changed": _listed(self.decisions.of(rows))}

        return JSONResponse(await run_in_threadpool(work))

    async def make_again(self, request: Request) -> Response:
        await self._body(request)
        refit = self._refit
        if refit is None:
            raise HTTPException(404, "This review cannot make the list again.")
        if not self._refitting.acquire(blocking=False):
            raise HTTPException(400, "The list is being made again already.")

        def work() -> None:
            self._show(self._refitted(refit, self.decisions.current()))

        try:
            await run_in_threadpool(work)
        finally:
            self._refitting.release()
        return JSONResponse({"generation": self._shown[0]})

    async def _body(self, request: Request) -> dict[str, Any]:
        """Return the JSON object that a request brings, made for the list that is shown now."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HTTPException(415, "Expected JSON.")
        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > MOST_BYTES:
                raise HTTPException(413, f"More than {MOST_BYTES >> 20} MiB are too much.")
        try:
            body = parse_json(content.decode(), "the request")
        except UnicodeDecodeError:
            raise HTTPException(400, "the request: not valid JSON (no UTF-8)") from None
        if not isinstance(body, dict):
            raise HTTPException(400, "the request: expected a JSON object")
        if body.get("generation") != self._shown[0]:
            raise HTTPException(409, "The list was made again; the page must be loaded again.")
        return body


class _Guard:
    """Lets through what comes from this machine and knows the token, and puts the headers of safety on every answer."""

    def __init__(self, app: ASGIApp, token: str, cookie: str, hosts: Collection[str]) -> None:
        self._app, self._token, self._cookie, self._hosts = app, token, cookie, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no other routes
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        reason = self._reason(request)
        new = reason is None and self._known(request.query_params.get("token"))

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if new:
                    # A cookie belongs to a machine and not to a port, hence the port in its name.
                    headers.append("Set-Cookie", f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        answer: Callable[[Scope, Receive, Send], Awaitable[None]] = self._app
        if reason is not None:
            wants_page = request.method == "GET" and request.url.path == "/"
            answer = PlainTextResponse(reason, 403) if wants_page else JSONResponse({"error": reason}, 403)
        await answer(scope, receive, dressed)

    def _reason(self, request: Request) -> str | None:
        """Return why a request is refused; None if it is not."""
        headers: Headers = request.headers
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in self._hosts:
            return "This review answers under its own address alone."
        origin = headers.get("origin")
        others = request.method not in ("GET", "HEAD")
        if (origin is None and others) or (origin is not None and origin not in {f"http://{h}" for h in self._hosts}):
            return "Decisions are taken from the page of this review alone."
        if others and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "Decisions are taken from the page of this review alone."
        first = request.method in ("GET", "HEAD") and request.url.path == "/"
        if self._known(request.cookies.get(self._cookie)) or (first and self._known(request.query_params.get("token"))):
            return None
        return "This address lacks the token of the review; open the address that was printed when it was started."

    def _known(self, token: str | None) -> bool:
        return token is not None and secrets.compare_digest(token.encode(), self._token.encode())


def _opener(report: Path) -> OpenPicture:
    paths = folder.load_paths(report)

    def picture(row: int) -> Image.Image | None:
        path = paths[row]
        return None if path is None else open_image(path)

    return picture


def _digest(*names: str) -> str:
    """Return by what a report is known: rows and classes that go by numbers are the same where it is the same."""
    return hashlib.blake2b("\0".join(names).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _page_file(name: str, kind: str) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Response(page_file(name), media_type=kind)

    return answer


def _listed(changed: dict[int, Decision | None]) -> list[list[Any]]:
    """Return what is decided about rows as JSON holds it: row, action, class, and whether it was the likeliest."""
    return [[row, *((one.action, one.label, one.agreed) if one else (None,) * 3)] for row, one in changed.items()]


def _whole_numbers(body: dict[str, Any], name: str) -> list[int]:
    value = body.get(name)
    if not isinstance(value, list) or not all(type(one) is int and -1 <= one < 2**31 for one in value):
        raise HTTPException(400, f"{name}: expected a list of whole numbers")
    return value


def _request_name(body: dict[str, Any]) -> str | None:
    name = body.get("request")
    if name is not None and not (isinstance(name, str) and name.isascii() and 0 < len(name) <= 64):
        raise HTTPException(400, "request: expected a short name")
    return name


def _refusal(request: Request, error: Exception) -> Response:
    """Return a refusal in one sentence: what is wrong with the request, or what the machine refuses."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": one_line(error.detail)}, error.status_code, error.headers)
    return JSONResponse({"error": str(error)}, 500 if isinstance(error, FileError) else 400)


def _failure(request: Request, error: Exception) -> Response:
    """Return an answer to what should not happen; the details are printed where the review was started."""
    return JSONResponse({"error": "The review failed; the terminal in which it was started says why."}, 500, HEADERS)
