"""The live page in headless Chromium, on a daemon with the small models of the tree.

Usage: page_test.py SPECD [FOLDER FOR SCREENSHOTS]. Needs the package `chromium`. Exits 1 at the first thing that is wrong.
What is drawn is compared with /page/state, and that with the tokens that the client of the API has got.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from browser import Browser

TREE = pathlib.Path(__file__).resolve().parents[3]
KEY = "a-key-of-the-page-test"
PROMPT = "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n"
# Text that would do something if it were taken for HTML.
HOSTILE_ID = "<img/src=x/onerror=document.body.remove()>"


class Daemon:
    def __init__(self, program, http):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        os.chmod(self.folder.name, 0o700)
        keys = pathlib.Path(self.folder.name, "keys")
        keys.write_text(KEY + "\n")
        keys.chmod(0o600)
        self.log = pathlib.Path(self.folder.name, "log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [program, "serve", "--config", str(TREE / "configs/without_training.yaml"),
                 "--set", f"listen=unix:{self.folder.name}/s.sock",
                 "--set", f"plugins.cache_directory={self.folder.name}/cache",
                 "--set", "http=" + http.replace("KEYS", str(keys))], stdout=log, stderr=log)
        end = time.monotonic() + 60
        while " ready on " not in (text := self.log.read_text()):
            assert self.process.poll() is None and time.monotonic() < end, text
            time.sleep(0.05)
        self.url = re.search(r"HTTP on (http://\S+)", text)[1]

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        self.folder.cleanup()

    def ask(self, path, body=None, headers=None):
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode(),
                                         headers or {})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read())

    def start(self, route, n, name):
        """A thread whose `answer` is that to a request for so many tokens."""
        def run():
            thread.answer = self.ask("/v1/completions", {
                "prompt": PROMPT, "max_tokens": n, "temperature": 0.9, "seed": 1, "ignore_eos": True,
                "return_token_ids": True, "speculative": {"route": route}}, {"x-request-id": name})
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def http_cpu_s(self):
        """Of the threads that serve HTTP, which make the states."""
        ticks = 0
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            name, fields = re.fullmatch(r"\d+ \((.*)\) (.*)", (task / "stat").read_text().strip()).groups()
            if name == "specd-http":
                ticks += sum(int(each) for each in fields.split()[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")


DRAWN = """(() => {
  const svg = document.getElementById('tree'), all = [...svg.querySelectorAll('g')];
  const node = group => ({name: group.dataset.node, parent: group.dataset.parent, token: Number(group.dataset.token),
                          look: group.getAttribute('class'), text: group.querySelector('text').textContent,
                          y: Number(group.querySelector('text').getAttribute('y')),
                          x: Number(group.querySelector('rect').getAttribute('x'))});
  return {step: Number(svg.dataset.step), nodes: all.map(node), lines: svg.querySelectorAll('path').length};
})()"""


def check_drawn(drawn, tree):
    """That the picture is this tree: nodes, parents, what was accepted, texts, places."""
    by_name = {node["name"]: node for node in drawn["nodes"]}
    assert by_name.pop("root")["token"] == tree["root"][0]
    following = by_name.pop("next", None)
    assert (following and following["token"]) == (tree["next"] and tree["next"][0]), (following, tree)
    assert len(by_name) == len(tree["nodes"]), (drawn, tree)
    for i, (parent, token, is_probe) in enumerate(tree["nodes"]):
        node = by_name[str(i)]
        assert (int(node["parent"]), node["token"]) == (parent, token[0]), (node, tree)
        look = "accepted" if i in tree["accepted"] else "probe" if is_probe else "node"
        assert node["look"] == look, (node, tree)
        plain = token[1].replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")
        assert node["text"] == plain or node["text"].endswith("…") or "‹" in node["text"], (node, token)
    assert drawn["lines"] == len(tree["nodes"]) + bool(following), "a line to each node but the root"
    places = {(node["x"], node["y"]) for node in drawn["nodes"]}
    assert len(places) == len(drawn["nodes"]), "two nodes in one place"
    path = [node["y"] for node in drawn["nodes"] if node["look"] in ("root", "accepted", "next")]
    assert len(set(path)) == 1, "what became text is one row"


def check_trees(daemon, browser):
    """Of a request that has ended: every tree, chosen by key, and the text that they make together."""
    request = daemon.start("draft_tree_wide", 300, HOSTILE_ID)
    browser.until("document.querySelectorAll('#tree g').length > 2")
    request.join()
    browser.until("document.getElementById('of_route').textContent.endsWith('ended')")
    state = daemon.ask("/page/state")
    tokens = []
    for tree in state["trees"]:
        tokens += [tree["nodes"][node][1][0] for node in tree["accepted"]]
        tokens += [tree["next"][0]] if tree["next"] else []
    assert len(tokens) >= 16 and tokens == request.answer["choices"][0]["token_ids"][-len(tokens):], tokens
    assert state["followed"]["id"] == HOSTILE_ID
    assert browser.run("document.getElementById('of').textContent") == HOSTILE_ID
    browser.run("document.querySelector('#strip input:checked').focus()")
    seen = set()
    for _ in range(2 * len(state["trees"])):
        drawn = browser.run(DRAWN)
        check_drawn(drawn, next(tree for tree in state["trees"] if tree["step"] == drawn["step"]))
        seen.add(drawn["step"])
        browser.press("ArrowLeft")
    assert seen == {tree["step"] for tree in state["trees"]}, "the arrows lead to every step"
    assert browser.run("document.getElementById('hold').getAttribute('aria-pressed')") == "true"
    browser.press(" ", " ")
    assert browser.run("document.getElementById('hold').getAttribute('aria-pressed')") == "true", "a radio's key"
    browser.run("document.activeElement.blur()")
    browser.press(" ", " ")
    assert browser.run("document.getElementById('hold').getAttribute('aria-pressed')") == "false"


def check_keys(daemon, browser):
    """Tab leads to the list, an arrow picks another request, and focus can be seen."""
    requests = [daemon.start("draft_tree_wide", 1800, "first"), daemon.start("prompt_lookup", 1800, "second")]
    browser.until("document.querySelectorAll('#requests input').length === 3")
    for _ in range(20):
        browser.press("Tab")
        if browser.run("document.activeElement.name") == "follow":
            break
    assert browser.run("document.activeElement.value") == "0", "the list was not reached"
    assert browser.run("getComputedStyle(document.activeElement.parentElement).outlineStyle") == "solid"
    browser.press("ArrowDown")
    picked = browser.until("document.activeElement.value !== '0' && document.activeElement.value")
    browser.until("document.getElementById('of').textContent === 'first' || "
                  "document.getElementById('of').textContent === 'second'")
    browser.rest_for(0.3)
    state = daemon.ask("/page/state")
    assert state["is_picked"] and state["followed"]["number"] == int(picked), (picked, state["followed"])
    browser.press("ArrowUp")
    browser.rest_for(0.3)
    assert not daemon.ask("/page/state")["is_picked"]
    return requests


def check_cost(daemon, browser, requests):
    """At most ten updates a second, and near that; less than a twentieth of a core."""
    browser.requests.clear()
    before, start = daemon.http_cpu_s(), time.monotonic()
    browser.rest_for(4)
    cpu, took = daemon.http_cpu_s() - before, time.monotonic() - start
    assert any(each.is_alive() for each in requests), "nothing ran meanwhile"
    updates = sum(url.endswith("/page/state") for url in browser.requests)
    assert 5 * took <= updates <= 10 * took + 1, f"{updates} updates in {took:.1f} s"
    assert cpu / took < 0.05, f"{100 * cpu / took:.1f} % of a core"
    print(f"{updates / took:.1f} updates a second, {100 * cpu / took:.1f} % of a core")


def check_widths(browser, folder):
    for width, height in ((1360, 900), (800, 900), (360, 740)):
        for scheme in ("light", "dark"):
            browser.resize(width, height)
            browser.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
            browser.rest_for(0.5)
            wide = browser.run("document.documentElement.scrollWidth")
            assert wide <= width, f"{wide} pixels in a window of {width}"
            if folder:
                browser.screenshot(os.path.join(folder, f"page_{width}_{scheme}.png"))


def check_many(daemon, browser):
    """A state lists 64 requests at most; the page says how many more run."""
    state = daemon.ask("/page/state")
    one = {"id": "one", "index": 0, "route": "off", "generation": 1, "prompt": 1, "output": 1, "max": 2,
           "drafted": 0, "accepted": 0}
    state.update(requests=[one | {"number": 1000 + i} for i in range(64)])
    for running, is_hidden in ((70, "false"), (64, "true")):
        state.update(running=running)
        browser.run(f"window.fetch = async () => ({{status: 200, json: async () => ({json.dumps(state)})}})")
        browser.until(f"document.getElementById('running').textContent === '{running}' && "
                      f"document.getElementById('unlisted').hidden === {is_hidden}")
        if running == 70:
            assert browser.run("document.getElementById('unlisted').textContent") == "and 6 more, which are not listed"


def check_key(program):
    """With keys the page asks for one, without a request that fails."""
    daemon = Daemon(program, "{listen: 127.0.0.1:0, page: true, api_keys_file: KEYS}")
    browser = Browser()
    try:
        try:
            daemon.ask("/page/state")
            raise AssertionError("the state needs no key")
        except urllib.error.HTTPError as error:
            assert error.code == 401, error
        browser.open(daemon.url + "/")
        browser.until("document.activeElement.id === 'key'")
        assert not [url for url in browser.requests if "/page/" in url], browser.requests
        browser.ask("Input.insertText", text=KEY)
        browser.press("Enter", "\r")
        browser.until("document.getElementById('state').textContent === 'ready'")
        assert browser.run("document.getElementById('notice').hidden")
        assert not browser.errors, browser.errors
    finally:
        browser.close()
        daemon.close()


def check_off(program):
    """Without http.page there is no page and no state."""
    daemon = Daemon(program, "{listen: 127.0.0.1:0}")
    try:
        for path in ("/", "/page/state"):
            try:
                daemon.ask(path)
                raise AssertionError(f"{path} is there")
            except urllib.error.HTTPError as error:
                assert error.code == 404, error
    finally:
        daemon.close()


def main():
    program, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    daemon = Daemon(program, "{listen: 127.0.0.1:0, page: true}")
    browser = Browser()
    try:
        browser.resize(1360, 900)
        browser.open(daemon.url + "/")
        browser.until("document.getElementById('state').textContent === 'ready'")
        check_trees(daemon, browser)
        requests = check_keys(daemon, browser)
        check_cost(daemon, browser, requests)
        check_widths(browser, folder)
        for each in requests:
            each.join()
        check_many(daemon, browser)
        assert all(url.startswith((daemon.url, "data:")) for url in browser.requests), set(browser.requests)
        assert not browser.errors, browser.errors
    finally:
        browser.close()
        daemon.close()
    check_key(program)
    check_off(program)
    print("the page is fine")


main()
