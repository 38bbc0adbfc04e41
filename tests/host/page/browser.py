"""Chromium without a window, driven over its debugging pipe: https://chromedevtools.github.io/devtools-protocol/."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

LIMIT_S = 60


class Browser:
    """One page. `errors`: what its console has said at the level error, and exceptions."""

    def __init__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        assert program, "chromium is not installed: apt-get install chromium"
        self.errors, self.requests = [], []
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, self.to = os.pipe()
        self.of, to_us = os.pipe()

        def connect():  # Chromium reads descriptor 3 and writes to 4, which may be ours
            high = fcntl.fcntl(from_us, fcntl.F_DUPFD, 10), fcntl.fcntl(to_us, fcntl.F_DUPFD, 10)
            os.dup2(high[0], 3), os.dup2(high[1], 4)

        self.log = open(os.path.join(self.folder.name, "log"), "wb")
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", "--no-first-run", "--user-data-dir=" + self.folder.name, "about:blank"],
            preexec_fn=connect, close_fds=False, stdout=self.log, stderr=self.log)
        os.close(from_us), os.close(to_us)
        self.number, self.rest, self.session = 0, b"", None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        os.close(self.to), os.close(self.of)
        self.folder.cleanup()

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT_S
        while True:
            answer = self.read(end - time.monotonic())
            assert answer is not None, f"Chromium does not answer {method}"
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def read(self, timeout):
        """The next message, whose events are noted; None at the timeout."""
        while b"\0" not in self.rest:
            if timeout <= 0 or not select.select([self.of], [], [], timeout)[0]:
                return None
            piece = os.read(self.of, 1 << 20)
            assert piece, "Chromium has ended"
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"])
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(params["args"])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message

    def rest_for(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script):
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    def until(self, script, limit_s=LIMIT_S):
        """Waits until the expression is true, and returns its value."""
        end = time.monotonic() + limit_s
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}"
            self.rest_for(0.05)
        return value

    def press(self, key, text=""):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        what = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **what, **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **what)

    def resize(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features):
        self.ask("Emulation.setEmulatedMedia", features=[
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def screenshot(self, path):
        self.ask("Emulation.setScrollbarsHidden", hidden=True)
        self.rest_for(0.2)
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        self.ask("Emulation.setScrollbarsHidden", hidden=False)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
