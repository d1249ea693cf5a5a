"""A headless Chromium that tests drive by its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAME = "chromium"
PICTURES = Path(__file__).parents[3] / "build" / "page"
UNTIL_S = 60  # for what a page shows, on a busy machine
ANSWER_S = UNTIL_S + 30  # to a command, which may wait for that
CLICKS = 20


class Page:
    """A tab of its own, without cookies or storage of others; what it logs as an error is kept."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.errors: list[str] = []
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command of the protocol."""
        number = next(self._numbers)
        session = {} if self._session is None else {"sessionId": self._session}
        self._socket.send(json.dumps({"id": number, "method": method, "params": params} | session))
        while True:
            message = json.loads(self._socket.recv(timeout=ANSWER_S))
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._listen(message)

    def _listen(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def js(self, expression: str) -> Any:
        """Return the value of an expression, of a promise what it becomes."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Return the first value of an expression that is true; it is looked up again and again by the page."""
        return self.js(f"""new Promise((resolve, reject) => {{
            const began = performance.now();
            const look = () => {{
                const value = {expression};
                if (value) resolve(value);
                else if (performance.now() - began > 1000 * {UNTIL_S})
                    reject(new Error("never true: " + {json.dumps(expression)} + "\\n" + document.body.innerText));
                else setTimeout(look, 20);
            }};
            look();
        }})""")

    def open(self, url: str) -> None:
        """Go to an address, and wait until its scripts have run."""
        self.call("Page.navigate", url=url)
        self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def text(self, selector: str) -> str:
        """Return the visible text of the first element."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def shows(self, selector: str, words: str) -> None:
        """Wait until the visible text of an element has these words."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.until(f"{found}?.checkVisibility() && {found}.innerText.includes({json.dumps(words)})")

    def click(self, selector: str) -> None:
        """Click the middle of an element, as a mouse does; again where it moved away in between, as a person would."""
        for _ in range(CLICKS):
            box = self.js(f"""(() => {{
                const target = document.querySelector({json.dumps(selector)});
                target.scrollIntoView({{ block: "center" }});
                window.clicked = false;
                target.addEventListener("click", () => {{ window.clicked = true; }}, {{ once: true, capture: true }});
                const {{ x, y, width, height }} = target.getBoundingClientRect();
                return [x + width / 2, y + height / 2];
            }})()""")
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
            if self.js("window.clicked"):
                return
        raise AssertionError(f"{selector} moves away from every click")

    def type(self, words: str) -> None:
        """Enter a text where the focus is."""
        self.call("Input.insertText", text=words)

    def press(self, key: str) -> None:
        """Press a key that is no character."""
        code = {"Enter": 13, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def choose(self, selector: str, path: Path) -> None:
        """Give a file to an input."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=found["result"]["objectId"])

    def looks(self, width: int, scheme: str) -> None:
        """Set the width of the window in pixels, and light or dark; nothing moves."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}
        ]  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, name: str) -> Path:
        """Keep the whole page as a PNG in build/page; return the file."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


@contextmanager
def chromium() -> Iterator[ClientConnection]:
    """Start the browser, and end it with all of its processes."""
    program = shutil.which(NAME)
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Root has no sandbox, and /dev/shm is small in containers.
        options = (
            "--headless=new", "--hide-scrollbars", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
            "--no-first-run",
        )  # fmt: skip
        command = [program, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stderr is not None
                address = next(line.split()[-1] for line in process.stderr if line.startswith("DevTools listening on "))
                with connect(address, max_size=None) as socket:
                    yield socket
                    # It ends its own processes, which a signal to it alone would leave behind.
                    socket.send(json.dumps({"id": 0, "method": "Browser.close"}))
                    process.wait(ANSWER_S)
            finally:
                process.kill()
